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
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from kasuri.checks import first_line
from kasuri.compression.probes import run, watched
from kasuri.compression.units import (
    FOLLOWS,
    IN,
    MAKES,
    OUT,
    OWN,
    READS,
    Key,
    add_to,
    by_unit,
    feature_dim,
    is_depthwise,
    sides_of,
    tensor_of,
    units_on,
)

OUTPUTS = "they are outputs of the network"

Place = tuple[str, str, int]  # a layer, its side, and an index there
Node = TypeVar("Node", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Member:
    """The part of one layer in a group of units.

    Args:
        layer: name of the module in the plain network.
        side: one of those of `units`.
        size: number of units of the group.
        units: for each index on that side the unit that is there, or `size` where there is none of them. A
            unit has several places after a flatten, and none where it is not read.
    """

    layer: str
    side: str
    size: int
    units: Tensor

    @property
    def key(self) -> Key:
        """Layer and side."""
        return self.layer, self.side

    def at(self, units: Tensor) -> Tensor:
        """True at the places of the units that are True."""
        return torch.cat([units, units.new_zeros(1)])[self.units]

    def largest(self, values: Tensor) -> Tensor:
        """For each unit the largest value at its places; -inf if it has none."""
        start = torch.full((self.size + 1,), -math.inf, dtype=torch.float64)
        return start.scatter_reduce(0, self.units, values.double(), "amax")[:-1]

    def any(self, here: Tensor) -> Tensor:
        """Units with at least one of their places among those that are True."""
        return self.largest(here) > 0

    def all(self, here: Tensor) -> Tensor:
        """Units with all of their places among those that are True."""
        return ~self.any(~here)


@dataclass(frozen=True, eq=False)
class Group:
    """Units that are made and read together: unit i is one and the same in all members.

    Args:
        name: of the first layer that makes them.
        size: number of units.
        members: layers that make, read or follow them.
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
            size = module.num_heads
            members = (Member(name, side, size, torch.arange(size)) for side in sides_of(module))
            groups.append(Group(f"{name} (heads)", size, tuple(members)))
    return groups


@torch.no_grad()
def inputs_of(net: nn.Module, example: Any) -> list[Group]:
    """Inputs of the network itself, by the layer that reads them: units that no layer makes.

    In a copy all parameters are NaN: what is a number all the same depends on none of them.

    Examples:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> [(group.name, group.size) for group in inputs_of(net, torch.ones(1, 2, 2))]
        [('1', 4)]
    """
    blind = copy.deepcopy(net)
    for parameter in blind.parameters():
        if parameter.is_floating_point():
            parameter.fill_(torch.nan)
    columns: dict[str, Tensor] = {}

    def look(name: str, module: nn.Module, inputs: list[Any]) -> None:
        if IN in sides_of(module):
            here = ~by_unit(module, inputs[0]).isnan().any(0)
            columns[name] = columns.get(name, here) & here

    with suppress(Exception):  # code that refuses NaN: what was seen until then is right
        watched(blind, example, look)
    groups = []
    for name, here in columns.items():
        if size := int(here.sum()):
            units = torch.where(here, here.cumsum(0) - 1, size)
            groups.append(Group(name, size, (Member(name, IN, size, units),)))
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
    links: list[list[Place]] = []
    obstacles: dict[str, str | None] = {}
    notes = []
    for name, module in net.named_modules():
        sides = sides_of(module)
        if OUT in sides and not is_depthwise(module) and name in marking.given:
            places, obstacles[name] = marking.followed(name, module)
            links += places
        elif isinstance(module, nn.RNNBase | nn.RNNCellBase | nn.Bilinear) and not sides:
            kind = type(module).__name__
            notes.append(f"{name!r} ({kind}) stays as it is: units of its kind cannot be taken out")
    units = connected(links)  # of every unit the places, that of its first maker first
    makers = (
        {layer for layer, side, _ in places if side == OUT and layer in obstacles}
        for places in units
    )
    groups = []
    for names in connected(makers):
        mine = [places for places in units if places[0][0] in names]
        groups.append(_group(net, mine, {n: o for n, o in obstacles.items() if n in names}))
    return groups, notes


class _Marking:
    """A copy of a network in which units of one layer can be marked.

    `given` has what every layer gave in the first run, call by call.
    """

    def __init__(self, net: nn.Module, example: Any) -> None:
        self.net, self.example = copy.deepcopy(net), example
        self.given: dict[str, list[Any]] = {}
        for name, module in self.net.named_modules():
            sides = sides_of(module)
            follows = is_depthwise(module) or isinstance(module, nn.PReLU) or FOLLOWS in sides
            is_leaf = next(module.children(), None) is None
            if follows and sides:
                module.register_forward_pre_hook(partial(self._look, name), with_kwargs=True)
            elif not follows and (sides or (is_leaf and module._parameters)):
                # units end here: new ones are made of them, or the kind of layer is not known
                module.forward = partial(self._replayed, name, module, module.forward)
        self.run()

    def run(self, root: str = "", marks: Tensor | None = None) -> None:
        """Run with marks on some units of a layer, and note who sees them; without marks, record."""
        self.root, self.marks = root, marks
        self.calls: Counter[str] = Counter()
        self.seen: dict[Key, Tensor] = {}
        self.obstacles: list[str] = []
        if any(map(_has_nan, tree_leaves(run(self.net, self.example)))):
            self.obstacles.append(OUTPUTS)

    def _replayed(
        self, name: str, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        self._look(name, module, args, kwargs)
        if self.marks is None:
            self.given.setdefault(name, []).append(forward(*args, **kwargs))
        out = copy.deepcopy(self.given[name][self.calls[name]])
        self.calls[name] += 1
        if name == self.root and self.marks is not None:
            for leaf in _tensors(out):
                leaf.index_fill_(feature_dim(module), self.marks.nonzero().flatten(), torch.nan)
        return out

    def _look(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Note marked units of a layer's input; its other inputs must have no marks."""
        side = next((s for s in sides_of(module) if s in (IN, FOLLOWS)), None)
        given = [*args, *kwargs.values()]
        if side is not None and _has_nan(tensor_of(given[0])):
            key = name, OUT if is_depthwise(module) else side
            add_to(self.seen, key, by_unit(module, given[0]).isnan().any(0))
        if any(map(_has_nan, _tensors(given if side is None else given[1:]))):
            kind = type(module).__name__
            self.obstacles.append(f"{name!r} ({kind}) mixes units, or its kind is not known")

    def followed(self, root: str, module: nn.Module) -> tuple[list[list[Place]], str | None]:
        """The places of every unit of a layer, and why none of them can go, if so."""
        size = units_on(module, OUT)
        own = [side for side in (OUT, OWN) if side in sides_of(module)]
        places: list[list[Place]] = [[(root, side, unit) for side in own] for unit in range(size)]
        digits = range(max(1, (size - 1).bit_length()))
        units, powers = torch.arange(size), 2 ** torch.arange(len(digits))
        codes = [units // 2**digit % 2 == value for value in (0, 1) for digit in digits]
        spelt: dict[Key, Tensor] = {}  # (codes, places)
        obstacle = None
        for number, code in enumerate(codes):
            try:
                self.run(root, code)
            except Exception as error:
                return (
                    places,
                    f"the network does not run when they are marked ({first_line(error)})",
                )
            obstacle = next(iter(self.obstacles), obstacle)
            for key, here in self.seen.items():
                empty = torch.zeros(len(codes), len(here), dtype=torch.bool)
                spelt.setdefault(key, empty)[number] = here
        for (layer, side), marks in spelt.items():
            here, (zeros, ones) = marks.any(0), marks.chunk(2)
            if bool((zeros == ones)[:, here].any()):
                obstacle = obstacle or f"they are mixed before {layer!r} reads them"
                continue
            numbers = (powers @ ones.long()).tolist()
            for place in here.nonzero().flatten().tolist():
                places[numbers[place]].append((layer, side, place))
        return places, obstacle


def _tensors(value: Any) -> list[Tensor]:
    """All tensors, those of packed sequences too."""
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in _tensors(tensor_of(part))]
    return [leaf for leaf in tree_leaves(tensor_of(value)) if isinstance(leaf, Tensor)]


def _has_nan(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and bool(value.isnan().any())


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


def _group(net: nn.Module, units: list[list[Place]], obstacles: Mapping[str, str | None]) -> Group:
    """A group of the places of every unit, and the obstacles of the layers that make them."""
    at: dict[Key, Tensor] = {}
    for unit, places in enumerate(units):
        for layer, side, place in places:
            if (layer, side) not in at:
                size = units_on(net.get_submodule(layer), side)
                at[layer, side] = torch.full((size,), len(units))
            at[layer, side][place] = unit
    members = tuple(Member(*key, len(units), where) for key, where in at.items())
    obstacle = next(filter(None, obstacles.values()), None) or _obstacle(members, net)
    return Group(next(iter(obstacles)), len(units), members, obstacle)


def _obstacle(members: Iterable[Member], net: nn.Module) -> str | None:
    if not any(member.side == IN for member in members):
        return OUTPUTS
    modules = [module for _, module in net.named_modules(remove_duplicate=False)]
    holders = Counter(id(p) for module in modules for p in module.parameters(recurse=False))
    for member in members:
        module = net.get_submodule(member.layer)
        if any(holders[id(p)] > 1 for p in module.parameters(recurse=False)):
            return f"a weight of {member.layer!r} is tied to another layer's"
    return None
