"""Functions of a module's parameters, for all members of a vmap in one node.

Inside vmap every operation is dispatched through the levels of torch.func, which takes several times as long
as a small operation itself. A function that treats leading dimensions of parameters as more of the same can
be called once, outside, with the parameters of all members stacked.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from kasuri.numerics.fused import members
from kasuri.numerics.shadow import shadow
from kasuri.streams import uniform

Module = TypeVar("Module", bound=nn.Module)
Function = Callable[[Any, int], Tensor]


def of_parameters(
    module: Module, function: Callable[[Module, int], Tensor], *, draws: bool
) -> Tensor:
    """`function(module, 0)`, where it may be called with the parameters of all members of a vmap instead.

    Then it is `function(other, n)`, other a module like this one whose parameters have n leading dimensions,
    one for each vmap, which the value must have as well. First derivatives only. For use where
    `torch_internals.batched_at_most` holds, or `batched_apart` if random numbers are drawn.

    Args:
        module: whose parameters, and no buffers, the function depends on.
        function: of the module and the number of leading dimensions.
        draws: whether it draws random numbers, which every member has its own of.

    Examples:
        >>> layer = nn.Linear(3, 1, bias=False)
        >>> def size(layer, leading):
        ...     return layer.weight.square().flatten(leading).sum(-1)
        >>> class Size(nn.Module):
        ...     def __init__(self, layer):
        ...         super().__init__()
        ...         self.layer = layer
        ...     def forward(self):
        ...         return of_parameters(self.layer, size, draws=False)
        >>> def of_one(weight):
        ...     return torch.func.functional_call(Size(layer), {"layer.weight": weight}, ())
        >>> torch.vmap(of_one)(torch.ones(2, 1, 3))
        tensor([3., 3.])
    """
    call = _Call(module, function, torch.is_grad_enabled())
    # a random number is batched wherever draws are to differ, whether parameters are batched or not
    token = (uniform if draws else torch.zeros)((), device=call.values[0].device)
    found: Tensor = _OfParameters.apply(call, 0, token, *call.values)
    return found


class _Call:
    """The function, a module like the one given for it to look at, and what backward needs of forward."""

    def __init__(self, module: nn.Module, function: Function, learns: bool) -> None:
        self.function, self.learns = function, learns
        # The module itself is left alone: other threads may look at it.
        self.shadow = shadow(module)
        self.places: list[tuple[Any, str]] = [
            (one._parameters, name)
            for one in self.shadow.modules()
            for name, value in one._parameters.items()
            if value is not None
        ]
        self.values: list[Tensor] = [owner[name] for owner, name in self.places]
        self.value: Tensor | None = None  # and its graph, inside a node of the outer one
        self.leaves: list[Tensor] = []

    def __call__(self, leading: int, values: Sequence[Tensor]) -> Tensor:
        """The function with these parameters."""
        for (owner, name), value in zip(self.places, values, strict=True):
            owner[name] = value
        with torch.set_grad_enabled(self.learns):
            return self.function(self.shadow, leading)


class _OfParameters(torch.autograd.Function):
    """Forward with its own graph, backward through it."""

    @staticmethod
    def forward(call: _Call, leading: int, token: Tensor, *values: Tensor) -> Tensor:
        leaves = [value.detach().requires_grad_(call.learns) for value in values]
        value = call(leading, leaves)
        if call.learns:
            call.value, call.leaves = value, leaves
        return value.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.call = inputs[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        assert call.value is not None
        found = torch.autograd.grad(
            call.value, call.leaves, grad, retain_graph=True, allow_unused=True
        )
        return None, None, None, *found

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[int | None, ...],
        call: _Call,
        leading: int,
        token: Tensor,
        *values: Tensor,
    ) -> tuple[Tensor, int]:
        one = token if dims[2] is None else token.select(dims[2], 0)
        each = members(values, dims[3:], info.batch_size)
        found: Tensor = _OfParameters.apply(call, leading + 1, one, *each)
        return found, 0
