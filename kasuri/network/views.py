"""Views: a parameter tensor as a weight matrix (*blocks, out, in), and a layer as an `Op` on it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from kasuri.numerics.sampling import normal_noise
from kasuri.numerics.torch_internals import eager
from kasuri.posteriors.base import Op, Posterior
from kasuri.streams import normal, signs

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_GATES: Mapping[type[nn.Module], int] = {nn.LSTM: 4, nn.LSTMCell: 4, nn.GRU: 3, nn.GRUCell: 3}


@dataclass(frozen=True)
class View:
    """How one tensor is laid out as a matrix; `matrix` and `tensor` are exact inverses.

    Args:
        tail: sizes behind the first dimension of the tensor.
        blocks: number of independent matrices (groups, gates) along the first dimension.
        swapped: the tensor has input features first (transposed convolutions).
        vector: the tensor has fewer than two dimensions and is left as it is.
        positions: neighbouring columns of the matrix that belong to one input (those of a kernel).
        lead: dimensions of the tensor before its rows, all of which count blocks (experts).
        padding: row of an embedding that means "nothing": it is trained by nothing and stays at its mean.
        channels_last: the kernel was laid out so, and draws of it are: a convolution answers in the layout of
            its kernel, and on a CPU what follows it (max-pooling above all) is slow in the usual one.

    Examples:
        >>> view = View(tail=(3, 2, 2), blocks=2)
        >>> view.matrix(torch.zeros(8, 3, 2, 2)).shape
        torch.Size([2, 4, 12])
    """

    tail: tuple[int, ...] = ()
    blocks: int = 1
    swapped: bool = False
    vector: bool = False
    positions: int = 1
    channels_last: bool = False
    padding: int | None = None
    lead: tuple[int, ...] = ()

    def matrix(self, tensor: Tensor) -> Tensor:
        """(*blocks, out, in) from the layer's own layout."""
        if self.vector:
            return tensor
        if self.swapped:
            outs, *kernel = self.tail
            split = tensor.reshape(self.blocks, -1, outs, math.prod(kernel))
            matrix = split.transpose(1, 2).reshape(self.blocks, outs, -1)
        else:
            matrix = tensor.reshape(self.blocks, -1, math.prod(self.tail))
        return matrix.squeeze(0) if self.blocks == 1 else matrix

    def tensor(self, matrix: Tensor) -> Tensor:
        """The layer's own layout from (*blocks, rows, in), for any number of rows."""
        if self.vector or (
            matrix.dim() == 2 and len(self.tail) == 1 and not (self.swapped or self.lead)
        ):
            return matrix
        if not self.swapped:
            return self._laid_out(matrix.reshape(*self.lead, -1, *self.tail))
        rows, kernel = matrix.shape[-2], self.tail[1:]
        split = matrix.reshape(self.blocks, rows, -1, math.prod(kernel))
        return self._laid_out(split.transpose(1, 2).reshape(-1, rows, *kernel))

    def padded(self, matrix: Tensor, posterior: Posterior) -> Tensor:
        """A draw whose padding row, if there is one, is at its mean."""
        if self.padding is None:
            return matrix
        row = torch.arange(matrix.shape[-2], device=matrix.device).unsqueeze(-1) == self.padding
        return torch.where(row, posterior.mean, matrix)

    def _laid_out(self, tensor: Tensor) -> Tensor:
        # vmap knows no layouts, and compiled code chooses its own
        return in_channels_last(tensor) if self.channels_last and eager() else tensor


def is_channels_last(kernel: Tensor) -> bool:
    """Whether a kernel is stored with its channels last; one of a single position counts as not."""
    return kernel.dim() == 4 and kernel[0, 0].numel() > 1 and kernel.stride(1) == 1


def in_channels_last(kernel: Tensor) -> Tensor:
    """The same numbers, stored with channels last."""
    return kernel.to(memory_format=torch.channels_last)


def view_of(owner: nn.Module, tensor: Tensor, blocks: bool, *, flat: bool = False) -> View:
    """The view of a parameter that `owner` holds.

    Groups of a convolution are always blocks, and so are the leading dimensions of parameters with three
    or more, such as experts (E, out, in); with `blocks`, so are the gates of recurrent layers and every head
    of the query, key and value maps of attention.

    Args:
        owner: of the parameter.
        tensor: the parameter.
        blocks: as above.
        flat: as version 0.2 did it: a parameter of a layer that torch does not have is one matrix, its
            first dimension the outputs.
    """
    if tensor.dim() < 2:
        return View(vector=True)
    tail = tuple(tensor.shape[1:])
    if isinstance(owner, _ConvNd):
        swapped = isinstance(owner, _ConvTransposeNd)
        positions, last = math.prod(tail[1:]), is_channels_last(tensor)
        return View(tail, owner.groups, swapped, positions=positions, channels_last=last)
    if not flat and _inputs_first(owner, tensor):
        return View(tail, swapped=True)
    if not flat and tensor.dim() > 2 and not isinstance(owner, nn.Bilinear):
        return View(
            tuple(tensor.shape[-1:]), math.prod(tensor.shape[:-2]), lead=tuple(tensor.shape[:-2])
        )
    return View(tail, _stacked(owner, tensor) if blocks else 1)


def _inputs_first(owner: nn.Module, tensor: Tensor) -> bool:
    """GPT-2's linear layer, which is called Conv1D and has its weight as (in, out)."""
    features: Any = getattr(owner, "nf", None)
    return type(owner).__name__ == "Conv1D" and tensor.dim() == 2 and tensor.shape[1] == features


def _stacked(owner: nn.Module, tensor: Tensor) -> int:
    """How many matrices are stacked in the rows (an LSTM's projection is one)."""
    if isinstance(owner, nn.MultiheadAttention):
        rows = tensor.shape[0]  # of bias_k and bias_v, one
        return rows // owner.head_dim if rows % owner.embed_dim == 0 else 1
    for kind, gates in _GATES.items():
        hidden: Any = owner.hidden_size if isinstance(owner, kind) else 0
        if tensor.shape[0] == gates * hidden:
            return gates
    return 1


def has_op(kind: type[nn.Module]) -> bool:
    """Whether `op_of` knows what layers of this class do with their weight (torch's own classes only)."""
    return kind in (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED)


Run = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def op_of(layer: nn.Module, view: View, bias: Posterior | Tensor | None, run: Run) -> Op:
    """The layer as an op; `run` is the layer itself as a function of (input, weight, bias)."""
    return LinearOp(bias) if isinstance(layer, nn.Linear) else ConvolutionOp(view, bias, run)


class LinearOp(Op):
    """x Aᵀ: features are the last dimension, the batch is the first."""

    is_linear = True

    def __init__(self, bias: Posterior | Tensor | None) -> None:
        self.bias = bias

    def shifted(self, x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, matrix, bias)

    def mix(self, hidden: Tensor, factor: Tensor) -> Tensor:
        return hidden @ factor

    def noise(self, y: Tensor, features: int) -> Tensor:
        like = y.new_empty(*y.shape[:-1], features)
        return normal_noise(like, examples=self.counts_examples(y))

    def local_is_exact(self, x: Tensor) -> bool:
        """With one vector per example; of a sequence, all vectors must meet the same weights."""
        return x.dim() <= 2

    def counts_examples(self, y: Tensor) -> bool:
        """One vector per example; with more dimensions the first may be time."""
        return y.dim() == 2

    def along_features(self, vector: Tensor, y: Tensor) -> Tensor:
        return vector

    def signs(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """±1 of shapes (batch, 1, ..., in) and (batch, 1, ..., out)."""
        shapes = [[*t.shape[:-1][:1], *[1] * (t.dim() - 2), t.shape[-1]] for t in (x, y)]
        return signs(shapes[0], x), signs(shapes[1], y)


class ConvolutionOp(Op):
    """A convolution or transposed convolution with all its options, run by the layer itself.

    A matrix has one row for each output channel (of each block).
    """

    def __init__(self, view: View, bias: Posterior | Tensor | None, run: Run) -> None:
        self.view, self.bias, self.run = view, bias, run
        self.spatial = len(view.tail) - 1

    def shifted(self, x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        return self.run(x, self.view.tensor(matrix), bias)

    def mix(self, hidden: Tensor, factor: Tensor) -> Tensor:
        """Channels of each block, K of them, combined into its outputs at every position."""
        size = hidden.shape[hidden.dim() - self.spatial :]
        lead = hidden.shape[: -self.spatial - 1]
        factor = factor.reshape(-1, *factor.shape[-2:])  # (blocks, K, out)
        split = hidden.reshape(*lead, factor.shape[0], factor.shape[1], -1)
        return (factor.mT @ split).reshape(*lead, -1, *size)

    def noise(self, y: Tensor, features: int) -> Tensor:
        shape = list(y.shape)
        shape[-self.spatial - 1] = self.view.blocks * features
        return normal(shape, dtype=y.dtype, device=y.device)

    def local_is_exact(self, x: Tensor) -> bool:
        """Never: weights are shared over positions."""
        return False

    def counts_examples(self, y: Tensor) -> bool:
        """Unless the input came without a batch."""
        return y.dim() == self.spatial + 2

    def along_features(self, vector: Tensor, y: Tensor) -> Tensor:
        return vector.reshape(-1, *[1] * self.spatial)

    def signs(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """±1 of shapes (batch, channels, 1, ...), constant over positions."""
        ones = [1] * self.spatial
        shapes = [[*t.shape[: -self.spatial], *ones] for t in (x, y)]
        return signs(shapes[0], x), signs(shapes[1], y)
