"""Parts of matrices: which rows and columns of which blocks are left."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Part:
    """Which entries of a matrix (*blocks, out, in) are left; of a vector, `places` alone counts.

    Args:
        places: (*blocks, out', in') or (n',): positions within each block, row by row.
        columns: number of columns of the whole matrix.
        blocks: numbers of the blocks that are left, if some are gone; of one alone, `places` has no
            dimension for it.
    """

    places: Tensor
    columns: int = 1
    blocks: Tensor | None = None

    @property
    def rows_left(self) -> Tensor:
        """(*blocks, out')."""
        return self.places[..., 0] // self.columns

    @property
    def columns_left(self) -> Tensor:
        """(*blocks, in')."""
        return self.places[..., 0, :] % self.columns

    def of(self, value: Tensor) -> Tensor:
        """These entries of a tensor shaped like the weight."""
        if self.places.dim() == 1:
            return value.detach()[self.places].clone()
        flat = value.detach().flatten(-2)
        return flat.gather(-1, self.places.flatten(-2)).reshape(self.places.shape).clone()


def along(value: Tensor, index: Tensor) -> Tensor:
    """Entries of the last dimension, the same along all that the index does not name."""
    index = index.expand(*value.shape[:-1], index.shape[-1])
    return value.detach().gather(-1, index).clone()
