"""Which units of which layers go together, found by marking them.

A copy of the network is run again and again. Every layer that makes units gives what it gave in the first
run, whatever it is given now; some units of one layer are replaced by NaN. NaN goes wherever a number goes:
through activations, sums, concatenations, flattening and pooling. So where the next layers see NaN, they read
these units. The units of a layer are marked by the binary digits of their numbers, a run for each digit and
its value: a place that reads one unit spells out its number, and a place that reads several of them has a
digit that is both 0 and 1.

What this says is not believed blindly: `kasuri.compression.shrink` tries it out and compares outputs.
"""

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from kasuri.checks import first_line
from kasuri.compression.probes import run
from kasuri.compression.units import (
    FOLLOWS,
    IN,
    MAKES,
    OUT,
    OWN,
    READS,
    feature_dim,
    is_depthwise,
    sides_of,
    tensor_of,
    units_on,
)
from kasuri.network.contexts import plain_path

OUTPUTS = "they are outputs of the network"

Place = tuple[str, str, int]  # a layer, its side, and an index there
Unit = tuple[str, int]  # a layer that makes it, and its number there
Node = TypeVar("Node", bound=Hashable)


@dataclass(frozen=True)
class Member:
    """The part of one layer in a group of units.

    Args:
        layer: name of the module in the plain network.
        side: one of those of `units`.
        places: for each unit of the group its indices on that side: several after a flatten, none where it is
            not read.
    """

    layer: str
    side: str
    places: tuple[tuple[int, ...], ...]

    def of(self, units: Tensor) -> list[int]:
        """Indices, on this side, of the units that are True."""
        return [place for unit in units.nonzero().flatten().tolist() for place in self.places[unit]]

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
        name: of the first layer that makes them.
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

    @property
    def makers(self) -> list[Member]:
        """Layers that make the units."""
        return self.on(*MAKES)

    @property
    def readers(self) -> list[Member]:
        """Layers that read them."""
        return self.on(*READS)


def heads_of(net: nn.Module) -> list[Group]:
    """Heads of attention, which one layer makes and reads."""
    groups = []
    for name, module in net.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            places = tuple((head,) for head in range(module.num_heads))
            members = tuple(Member(name, side, places) for side in sides_of(module))
            groups.append(Group(name, module.num_heads, members))
    return groups


@torch.no_grad()
def find_groups(net: nn.Module, example: Any) -> tuple[list[Group], list[str]]:
    """The groups of a plain network, and which layers are of kinds that cannot be cut.

    Args:
        net: plain, in double precision, in evaluation mode.
        example: an input in double precision.

    Examples:
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double().eval()
        >>> groups, _ = find_groups(net, torch.zeros(1, 3).double())
        >>> [(g.name, g.size, g.obstacle) for g in groups]
        [('0', 4, None), ('2', 2, 'they are outputs of the network')]
    """
    marking = _Marking(net, example)
    makers = {
        name: _followed(marking, name, units_on(module, OUT))
        for name, module in net.named_modules()
        if OUT in sides_of(module) and not is_depthwise(module) and name in marking.given
    }
    notes = [
        f"{name!r} ({type(module).__name__}) stays as it is: units of its kind cannot be taken out"
        for name, module in net.named_modules()
        if isinstance(module, nn.RNNBase | nn.RNNCellBase | nn.Bilinear) and not sides_of(module)
    ]
    shared = connected([name, *followed.places] for name, followed in makers.items())
    groups = [[name for name in nodes if isinstance(name, str)] for nodes in shared]
    return [_group(net, makers, names) for names in groups], notes


@dataclass
class _Followed:
    """Where the units of one layer are read, and why they cannot go, if they cannot."""

    size: int
    places: dict[Place, int] = field(default_factory=dict)
    obstacle: str | None = None


class _Marking:
    """A copy of a network in which units of one layer can be marked.

    `given` has what every layer gave in the first run, call by call.
    """

    def __init__(self, net: nn.Module, example: Any) -> None:
        self.net, self.example = copy.deepcopy(net), example
        self.given: dict[str, list[Any]] = {}
        for name, module in self.net.named_modules():
            if self._stops(module):
                module.forward = self._recorded(name, module.forward)
        self.run()
        for name, module in self.net.named_modules():
            side = next(iter(sides_of(module)), None)
            if self._stops(module):
                module.forward = self._replayed(name, module)
            elif side is not None:
                module.register_forward_pre_hook(self._looked(name, side, module), with_kwargs=True)

    @staticmethod
    def _stops(module: nn.Module) -> bool:
        """Whether units end at this layer: it makes new ones of them, or is of an unknown kind."""
        if is_depthwise(module) or isinstance(module, nn.PReLU) or FOLLOWS in sides_of(module):
            return False
        is_leaf = next(module.children(), None) is None
        return bool(sides_of(module)) or (is_leaf and bool(module._parameters))

    def run(self, root: str = "", marks: Tensor | None = None) -> None:
        """Run with marks on some units of a layer, and note who sees them."""
        self.root, self.marks = root, marks
        self.calls = dict.fromkeys(self.given, 0)
        self.seen: dict[tuple[str, str], Tensor] = {}
        self.obstacles: list[str] = []
        with plain_path():
            out = run(self.net, self.example)
        if any(map(_has_nan, tree_leaves(out))):
            self.obstacles.append(OUTPUTS)

    def _recorded(self, name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            out = forward(*args, **kwargs)
            self.given.setdefault(name, []).append(copy.deepcopy(out))
            return out

        return recorded

    def _replayed(self, name: str, module: nn.Module) -> Callable[..., Any]:
        side = IN if IN in sides_of(module) else ""
        look = self._looked(name, side, module)

        def replayed(*args: Any, **kwargs: Any) -> Any:
            look(module, args, kwargs)
            self.calls[name] += 1
            out = copy.deepcopy(self.given[name][self.calls[name] - 1])
            if name == self.root and self.marks is not None:
                dim, units = feature_dim(module), self.marks.nonzero().flatten()
                for leaf in _tensors(out):
                    leaf.index_fill_(dim, units, torch.nan)
            return out

        return replayed

    def _looked(self, name: str, side: str, module: nn.Module) -> Callable[..., None]:
        """A hook that notes marked units of a layer's input; its other inputs must have no marks."""

        def look(_: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            given = [*args, *kwargs.values()]
            rest = given[1:] if side else given
            if side and _has_nan(x := tensor_of(given[0])):
                dim = feature_dim(module)
                here = x.isnan().movedim(dim, -1).reshape(-1, x.shape[dim]).any(0)
                self.seen[name, side] = self.seen.get((name, side), here) | here
            if any(map(_has_nan, _tensors(rest))):
                kind = type(module).__name__
                self.obstacles.append(f"{name!r} ({kind}) mixes units, or its kind is not known")

        return look


def _tensors(value: Any) -> list[Tensor]:
    """All tensors, those of packed sequences too."""
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in _tensors(tensor_of(part))]
    return [leaf for leaf in tree_leaves(tensor_of(value)) if isinstance(leaf, Tensor)]


def _has_nan(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and bool(value.isnan().any())


def _followed(marking: _Marking, root: str, size: int) -> _Followed:
    """Where every unit of a layer is read."""
    followed = _Followed(size)
    units, digits = torch.arange(size), max(1, (size - 1).bit_length())
    spelt: dict[tuple[str, str], Tensor] = {}  # (digits, values of a digit, places)
    for digit in range(digits):
        for value in (0, 1):
            try:
                marking.run(root, (units >> digit) % 2 == value)
            except Exception as error:
                followed.obstacle = (
                    f"the network does not run when they are marked ({first_line(error)})"
                )
                return followed
            followed.obstacle = next(iter(marking.obstacles), followed.obstacle)
            for key, here in marking.seen.items():
                empty = torch.zeros(digits, 2, len(here), dtype=torch.bool)
                spelt.setdefault(key, empty)[digit, value] = here
    powers = 2 ** torch.arange(digits)
    for (layer, side), marks in spelt.items():
        here = marks.any(1).any(0)
        if bool((marks.sum(1) != 1)[:, here].any()):
            followed.obstacle = followed.obstacle or f"they are mixed before {layer!r} reads them"
            continue
        numbers = (powers @ marks[:, 1].long()).tolist()
        places = here.nonzero().flatten().tolist()
        followed.places |= {(layer, side, place): numbers[place] for place in places}
    return followed


def connected(links: Iterable[Iterable[Node]]) -> list[list[Node]]:
    """Groups of nodes that are connected, where every link joins several nodes.

    Examples:
        >>> connected(["ab", "cd", "be"])
        [['a', 'b', 'e'], ['c', 'd']]
    """
    owner: dict[Node, list[Node]] = {}
    for link in links:
        parts = (owner.get(node, [node]) for node in link)
        together = list(dict.fromkeys(node for part in parts for node in part))
        owner |= dict.fromkeys(together, together)
    return list({id(nodes): nodes for nodes in owner.values()}.values())


def _group(net: nn.Module, makers: Mapping[str, _Followed], names: Sequence[str]) -> Group:
    """The units of some layers; units that are read at the same places are one and the same."""
    links: dict[Unit, list[Unit | Place]] = {
        (name, number): [(name, number)] for name in names for number in range(makers[name].size)
    }
    for name in names:
        for place, number in makers[name].places.items():
            links[name, number].append(place)
    units = connected(links.values())
    spread: dict[tuple[str, str], list[list[int]]] = {}

    def put(unit: int, layer: str, side: str, place: int) -> None:
        spread.setdefault((layer, side), [[] for _ in units])[unit].append(place)

    for unit, nodes in enumerate(units):
        for node in nodes:
            if len(node) == 3:
                put(unit, *node)
                continue
            name, number = node
            put(unit, name, OUT, number)
            if OWN in sides_of(net.get_submodule(name)):
                put(unit, name, OWN, number)
    members = tuple(
        Member(*key, tuple(tuple(sorted(places)) for places in by_unit))
        for key, by_unit in spread.items()
    )
    obstacles = (makers[name].obstacle for name in names)
    obstacle = next((reason for reason in obstacles if reason is not None), None) or _obstacle(
        members, net
    )
    return Group(names[0], len(units), members, obstacle)


def _obstacle(members: Iterable[Member], net: nn.Module) -> str | None:
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
    return None
