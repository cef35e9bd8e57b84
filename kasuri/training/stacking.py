"""Networks of the same make as one: their parameters stacked, their values shared."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kasuri.objectives.elbo import Objective


class _Parts(nn.Module):
    """The two parts of an objective as a module, which is what functional_call calls."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.objective.parts(x, y)


class Stack:
    """Objectives evaluated together, each with its own parameters on its own batch.

    Parameters and buffers of the objectives become views of stacked tensors: what an optimiser does to the
    stack, every member has done to it, until `release`.

    Args:
        objectives: equal in everything but the values of parameters and buffers.
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self.members = [_Parts(one) for one in objectives]
        members, self.parts = self.members, self.members[0]
        wanted = {name: p.requires_grad for name, p in self.parts.named_parameters()}
        stacked = _stacked([dict(one.named_parameters()) for one in members])
        self.parameters: dict[str, Tensor] = {
            name: nn.Parameter(tensor, requires_grad=wanted[name])
            for name, tensor in stacked.items()
        }
        self.buffers = _stacked([dict(one.named_buffers()) for one in members])

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(nll per example, kl in full) of every member, (members,) each.

        Args:
            x: inputs (members, batch, ...).
            y: targets (members, batch, ...).
        """

        def one(
            parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor
        ) -> tuple[Tensor, Tensor]:
            values: tuple[Tensor, Tensor] = torch.func.functional_call(
                self.parts, (parameters, buffers), (x, y)
            )
            return values

        return torch.func.vmap(one, randomness="different")(self.parameters, self.buffers, x, y)

    def release(self) -> None:
        """Give every member tensors of its own again, so that a file of one does not hold all."""
        for module in self.members:
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.data = tensor.data.clone()

    def trained(self) -> list[nn.Parameter]:
        """The stacked parameters that training changes."""
        held = [one for one in self.parameters.values() if isinstance(one, nn.Parameter)]
        return [one for one in held if one.requires_grad]


def _stacked(members: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors of the same name as one; the members keep views of it."""
    names = list(members[0])
    shapes = [{name: tensor.shape for name, tensor in one.items()} for one in members]
    if any(one != shapes[0] for one in shapes):
        raise ValueError(
            "networks to be trained together must have the same parameters: same layers, same sizes, "
            "same posterior families"
        )
    stacked = {}
    for name in names:
        if len({id(one[name]) for one in members}) < len(members):
            raise ValueError(
                f"networks to be trained together share {name}: give each its own likelihood, prior and "
                "layers, e.g. by copy.deepcopy"
            )
        whole = torch.stack([one[name].detach() for one in members])
        for view, one in zip(whole.unbind(0), members, strict=True):
            one[name].data = view
        stacked[name] = whole
    return stacked
