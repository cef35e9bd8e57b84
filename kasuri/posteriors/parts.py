"""Taking some rows and columns of every block of a tensor, for `Posterior.part`."""

from torch import Tensor


def entries(value: Tensor, rows: Tensor, columns: Tensor | None = None) -> Tensor:
    """These entries of a tensor shaped like the weight, (*blocks, n', m'); of a vector (n',).

    Examples:
        >>> import torch
        >>> entries(torch.arange(6).view(2, 3), torch.tensor([1]), torch.tensor([0, 2]))
        tensor([[3, 5]])
    """
    if columns is None:
        return value.detach()[rows].clone()
    flat = positions(rows, columns, value.shape[-1])
    chosen = value.detach().flatten(-2).gather(-1, flat)
    return chosen.reshape(*rows.shape, columns.shape[-1])


def positions(rows: Tensor, columns: Tensor, width: int) -> Tensor:
    """(*blocks, n' · m') of these entries in blocks of so many columns, row by row."""
    return (rows.unsqueeze(-1) * width + columns.unsqueeze(-2)).flatten(-2)


def along(value: Tensor, index: Tensor) -> Tensor:
    """Entries of the last dimension, the same along all that the index does not name."""
    index = index.expand(*value.shape[:-1], index.shape[-1])
    return value.detach().gather(-1, index)
