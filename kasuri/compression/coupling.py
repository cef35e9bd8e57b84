"""Which units of which layers go together.

The dependency graph is built on a copy of the plain network in which recurrent layers and attention are
replaced by linear ones with the same inputs and outputs: their own graphs are full of details that
say nothing about units. What the graph says is not believed blindly: `kasuri.compression.shrink` tries it out
and compares outputs before and after.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.checks import told
from kasuri.compression.dependency_graph import Coupled, CoupledUnits, coupled_units
from kasuri.compression.probes import run
from kasuri.compression.units import (
    IN,
    OUT,
    OWN,
    is_depthwise,
    is_follower,
    parents_of,
    sides_of,
    simple_recurrent,
    units_on,
)

FOLLOWS = "follows"
OUTPUTS = "they are outputs of the network"
_SEVERAL = "has several layers, directions or a projection, which share one number of units"
_UNRESOLVED = "the graph cannot follow them (as in grouped-query attention)"


@dataclass(frozen=True)
class Member:
    """The part of one layer in a group of units.

    Args:
        layer: name of the module in the plain network.
        side: "out", "in", "own", or "follows" for layers that act on every unit by itself.
        places: for each unit of the group its indices on that side (several after a flatten).
    """

    layer: str
    side: str
    places: tuple[tuple[int, ...], ...]

    def of(self, units: Tensor) -> list[int]:
        """Where the units that are True are on this side."""
        chosen = units.nonzero().flatten().tolist()
        return [place for unit in chosen for place in self.places[unit]]

    def any(self, here: Tensor) -> Tensor:
        """Units with at least one of their places among those that are True."""
        return torch.tensor([any(bool(here[p]) for p in spread) for spread in self.places])

    def all(self, here: Tensor) -> Tensor:
        """Units with all of their places among those that are True."""
        return torch.tensor([all(bool(here[p]) for p in spread) for spread in self.places])


@dataclass(frozen=True)
class Group:
    """Units that are made and read together: unit i is one and the same in all members.

    Args:
        name: of the layer that it was found from.
        size: number of units.
        members: at least one that makes them.
        obstacle: why none of them can be taken out, if none can.
    """

    name: str
    size: int
    members: tuple[Member, ...]
    obstacle: str | None = None

    def on(self, *sides: str) -> list[Member]:
        """The members on these sides."""
        return [member for member in self.members if member.side in sides]


def find_groups(net: nn.Module, example: Any) -> tuple[list[Group], list[str]]:
    """The groups of a plain network, and what could not be traced.

    Args:
        net: plain, in double precision, in evaluation mode.
        example: an input in double precision.

    Examples:
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double().eval()
        >>> groups, _ = find_groups(net, torch.zeros(1, 3).double())
        >>> [(g.name, g.size, g.obstacle) for g in groups]
        [('2', 2, 'they are outputs of the network'), ('0', 4, None)]
    """
    traced, names = _for_tracing(net)
    try:
        found = [_group(one, net, names) for one in coupled_units(traced, example, run, _tensors)]
    except ImportError:
        raise
    except Exception as error:
        return [], [f"the network could not be traced ({told(error)}): no unit was taken out"]
    groups = [group for group in found if group is not None]
    return groups, list(_unseen(net, groups))


def _tensors(out: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(out)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.grad_fn is not None]


def _for_tracing(net: nn.Module) -> tuple[nn.Module, dict[nn.Module, str]]:
    """A copy with stand-ins, and the names that its modules have in the network itself."""
    traced = copy.deepcopy(net)
    for parameter in traced.parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_()
    names = {module: name for name, module in traced.named_modules()}
    parents = parents_of(traced)
    for module, name in list(names.items()):
        stand_in: nn.Module | None = None
        if isinstance(module, nn.RNNBase):
            stand_in = _Recurrent(module)
        elif isinstance(module, nn.MultiheadAttention):
            stand_in = _Attention(module)
        elif isinstance(module, nn.PReLU) and module.num_parameters == 1:
            stand_in = nn.ReLU()  # one slope for all: no units of its own
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # looks into the attention of its first layer
        if stand_in is not None:
            names |= {inner: name for inner in stand_in.modules()}
            traced = stand_in if module is traced else traced
            for parent, attribute in parents.get(id(module), []):
                parent._modules[attribute] = stand_in
    return traced, names


class _Recurrent(nn.Module):
    """In the place of a recurrent layer: all its outputs through one linear layer."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.batch_first, self.pair = layer.batch_first, isinstance(layer, nn.LSTM)
        self.states = layer.num_layers * (1 + layer.bidirectional)
        self.hidden = layer.proj_size or layer.hidden_size
        size = self.hidden * (1 + layer.bidirectional)
        weight = layer.weight_ih_l0
        self.inner = nn.Linear(layer.input_size, size, device=weight.device, dtype=weight.dtype)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        y = self.inner(x)
        last = y.select(1 if self.batch_first and y.dim() == 3 else 0, -1)
        h = last[..., : self.hidden] if last.shape[-1] != self.hidden else last
        h = h.unsqueeze(0)
        h = h.expand(self.states, *h.shape[1:]) if self.states > 1 else h
        return y, (h, h * 1) if self.pair else h


class _Attention(nn.Module):
    """In the place of attention: something of the right shape through linear layers."""

    def __init__(self, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        weight = layer.out_proj.weight
        self.batch_first = layer.batch_first
        self._qkv_same_embed_dim, self.in_proj_bias = False, None
        self.num_heads = layer.num_heads

        def linear(size: int) -> nn.Linear:
            return nn.Linear(size, layer.embed_dim, device=weight.device, dtype=weight.dtype)

        self.query, self.key, self.value = map(linear, (layer.embed_dim, layer.kdim, layer.vdim))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, None]:
        along = 1 if self.batch_first and query.dim() == 3 else 0
        means = (
            self.key(key).mean(along, keepdim=True),
            self.value(value).mean(along, keepdim=True),
        )
        return self.query(query) + means[0] + means[1], None


def _group(found: CoupledUnits, net: nn.Module, names: Mapping[nn.Module, str]) -> Group | None:
    """Coupled units by names of layers; None if no known layer makes them."""
    members: dict[tuple[str, str], Member] = {}
    obstacles: list[str] = [] if found.resolved else [_UNRESOLVED]
    for coupled in found.members:
        if isinstance(coupled.target, nn.Parameter):
            obstacles.append("a bare parameter is added to them or multiplied with them")
        elif isinstance(coupled.target, str):
            obstacles.append(OUTPUTS)
        elif coupled.target in names:
            name = names[coupled.target]
            module = net.get_submodule(name)
            side, reason = _side(name, module, coupled.makes)
            if side is None:
                obstacles.append(reason)
                continue
            places = _places(coupled, found.size)
            members[name, side] = Member(name, side, places)
            if side == OUT and simple_recurrent(module):
                members[name, OWN] = Member(name, OWN, places)
    every = tuple(members.values())
    if not any(member.side == OUT for member in every):
        return None
    obstacle = obstacles[0] if obstacles else _obstacle(every, net)
    return Group(names.get(found.root, ""), found.size, every, obstacle)


def _side(name: str, module: nn.Module, makes: bool) -> tuple[str | None, str]:
    """The side on which a layer is a member, or None and why it cannot be one."""
    if is_follower(module):
        return FOLLOWS, ""
    if isinstance(module, nn.MultiheadAttention):
        return None, f"{name!r} is attention, whose embedding keeps its size"
    if isinstance(module, nn.RNNBase) and not simple_recurrent(module):
        return None, f"{name!r} {_SEVERAL}"
    side = OUT if makes or is_depthwise(module) else IN
    if side not in sides_of(module):
        return None, f"{name!r} ({type(module).__name__}) mixes units, or its kind is not known"
    return side, ""


def _places(coupled: Coupled, size: int) -> tuple[tuple[int, ...], ...]:
    """For every unit its indices in a member."""
    places: list[list[int]] = [[] for _ in range(size)]
    for place, unit in coupled.units.items():
        places[unit].append(place)
    return tuple(tuple(sorted(spread)) for spread in places)


def _obstacle(members: tuple[Member, ...], net: nn.Module) -> str | None:
    if not any(member.side == IN for member in members):
        return OUTPUTS
    holders: dict[int, set[str]] = {}
    for name, module in net.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            holders.setdefault(id(parameter), set()).add(name)
    for member in members:
        module = net.get_submodule(member.layer)
        if any(len(holders[id(p)]) > 1 for p in module.parameters(recurse=False)):
            return f"a weight of {member.layer!r} is tied to another layer's"
        if member.side != FOLLOWS and not is_depthwise(module):
            top = units_on(module, member.side)
            if any(place >= top for places in member.places for place in places):
                return f"the graph gives {member.layer!r} units that it does not have"
    return None


def _unseen(net: nn.Module, groups: list[Group]) -> Iterator[str]:
    """Layers with units of which the graph says nothing."""
    seen = {member.layer for group in groups for member in group.members}
    for name, module in net.named_modules():
        known = sides_of(module) and not isinstance(module, nn.Embedding)
        if isinstance(module, nn.RNNBase) and not simple_recurrent(module):
            yield f"{name!r} stays as it is: it {_SEVERAL}"
        elif (known or isinstance(module, nn.RNNCellBase | nn.Bilinear)) and name not in seen:
            around = net.get_submodule(name.rpartition(".")[0])
            if not isinstance(around, nn.MultiheadAttention):
                yield f"{name!r} ({type(module).__name__}): the graph has no units of it"
