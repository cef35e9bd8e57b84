"""Which units go: where the rules of the layers that make them and of those that read them agree."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from kasuri.compression.graph import Group, Member
from kasuri.compression.layers import IN, OUT, OWN, marked
from kasuri.compression.statistics import HEAD_OUTPUTS, HEAD_VALUES, Key, Statistic

STRUCTURES = ("both", "rows", "columns", "weights")
AGREEMENTS = ("both", "either")


@dataclass(frozen=True)
class Rule:
    """What may go, and who has to agree.

    Args:
        structure: "rows" asks the layers that make a unit, "columns" those that read it, "both" asks both;
            "weights" drops weights one by one.
        agree: for "both": whether both have to say so, or "either". A side without a statistic has no
            say.
    """

    structure: str = "both"
    agree: str = "both"

    def __post_init__(self) -> None:
        """Refuse what does not exist."""
        if self.structure not in STRUCTURES:
            raise ValueError(
                f"compress(structure={self.structure!r}): write one of "
                f"{', '.join(map(repr, STRUCTURES))}"
            )
        if self.agree not in AGREEMENTS:
            raise ValueError(
                f'compress(agree={self.agree!r}): write "both" or "either": the rules of the layer '
                "that makes a unit and of the layer that reads it"
            )

    @property
    def rows(self) -> bool:
        """Whether rows are asked."""
        return self.structure in ("both", "rows")

    @property
    def columns(self) -> bool:
        """Whether columns are asked."""
        return self.structure in ("both", "columns")

    def goes(self, rows: Tensor | None, columns: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """(units whose rows are set to 0, units whose columns are), from what the sides say."""
        if rows is None and columns is None:
            return None
        if rows is None or columns is None:
            said = rows if rows is not None else columns
            assert said is not None
            none = torch.zeros_like(said)
            return (said, none) if columns is None else (none, said)
        return (rows & columns, rows & columns) if self.agree == "both" else (rows, columns)


@dataclass
class Decision:
    """What is set to 0.

    Args:
        rows: by layer, units whose incoming weights go.
        columns: by layer and side ("in", "own"), units whose outgoing weights go.
        heads: by attention layer, (heads whose values go, heads whose outputs go).
        inputs: by layer, inputs of the network whose columns go: nobody else has a say there.
    """

    rows: dict[str, set[int]] = field(default_factory=dict)
    columns: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    heads: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    inputs: dict[str, list[int]] = field(default_factory=dict)


def decide(
    groups: Sequence[Group],
    statistics: Mapping[Key, Statistic],
    levels: Mapping[Key, float],
    rule: Rule,
    inputs: Collection[str] = (),
) -> Decision:
    """The units that go at these levels.

    Args:
        groups: of `find_groups`.
        statistics: of `unit_statistics`.
        levels: for each statistic the logarithm below which a unit is not needed.
        rule: what may go.
        inputs: layers that read the inputs of the network.
    """
    decision = Decision()
    low = {key: one.logs < levels[key] for key, one in statistics.items()}
    for group in groups:
        if group.obstacle is None:
            _decide_group(decision, group, statistics, low, rule)
    attention = {layer: None for layer, side in low if side in (HEAD_VALUES, HEAD_OUTPUTS)}
    for layer in attention:
        _decide_heads(decision, layer, statistics, low, rule)
    if rule.columns:
        _decide_inputs(decision, inputs, low, statistics)
    return decision


def _decide_group(
    decision: Decision,
    group: Group,
    statistics: Mapping[Key, Statistic],
    low: Mapping[Key, Tensor],
    rule: Rule,
) -> None:
    makers, readers = group.on(OUT), group.on(IN, OWN)
    rows = _agreed(makers, low, group.size) if rule.rows else None
    columns = _agreed(readers, low, group.size) if rule.columns else None
    chosen = rule.goes(rows, columns)
    if chosen is None:
        return
    by_rows, by_columns = _one_left(*chosen, _worth(group, statistics))
    for maker in makers:
        decision.rows.setdefault(maker.layer, set()).update(places_of(maker, by_rows))
    for reader in readers:
        at = decision.columns.setdefault((reader.layer, reader.side), set())
        at.update(places_of(reader, by_columns))
        if rule.columns and any(len(spread) > 1 for spread in reader.places):
            at.update(_unread(reader, low, statistics))


def _agreed(members: Sequence[Member], low: Mapping[Key, Tensor], size: int) -> Tensor | None:
    """Units that all members can do without; None if one of them cannot tell."""
    if not members or any((one.layer, one.side) not in low for one in members):
        return None
    said = torch.ones(size, dtype=torch.bool)
    for one in members:
        below = low[one.layer, one.side]
        said &= torch.tensor([all(bool(below[p]) for p in spread) for spread in one.places])
    return said


def places_of(member: Member, units: Tensor) -> list[int]:
    """Where the units that are True are on a side."""
    return [place for unit in units.nonzero().flatten().tolist() for place in member.places[unit]]


def _unread(
    reader: Member, low: Mapping[Key, Tensor], statistics: Mapping[Key, Statistic]
) -> list[int]:
    """Columns of a reader that takes a unit at many places, such as a dense layer behind a convolution.

    The unit stays as long as one place is read; columns of the others are set to 0.
    """
    below = low.get((reader.layer, reader.side))
    if below is None:
        return []
    every = [place for spread in reader.places for place in spread]
    gone = [place for place in every if bool(below[place])]
    return (
        gone if len(gone) < len(every) else _but_best(gone, statistics[reader.layer, reader.side])
    )


def _but_best(gone: Sequence[int], statistic: Statistic) -> list[int]:
    """All but the most needed."""
    best = max(gone, key=lambda place: float(statistic.logs[place]))
    return [place for place in gone if place != best]


def _worth(group: Group, statistics: Mapping[Key, Statistic]) -> Tensor:
    """How much the side that needs a unit most needs it."""
    worth = torch.full((group.size,), -math.inf, dtype=torch.float64)
    for one in group.members:
        known = statistics.get((one.layer, one.side))
        if known is not None:
            logs = known.logs - known.offset
            best = [max((float(logs[p]) for p in s), default=-math.inf) for s in one.places]
            worth = torch.maximum(worth, torch.tensor(best, dtype=torch.float64))
    return worth


def _one_left(rows: Tensor, columns: Tensor, worth: Tensor) -> tuple[Tensor, Tensor]:
    """Spare the best unit if all would go: a layer of no units is no layer."""
    if bool((rows | columns).all()):
        best = int(worth.argmax())
        rows, columns = rows.clone(), columns.clone()
        rows[best] = columns[best] = False
    return rows, columns


def _decide_heads(
    decision: Decision,
    layer: str,
    statistics: Mapping[Key, Statistic],
    low: Mapping[Key, Tensor],
    rule: Rule,
) -> None:
    chosen = rule.goes(
        low.get((layer, HEAD_VALUES)) if rule.rows else None,
        low.get((layer, HEAD_OUTPUTS)) if rule.columns else None,
    )
    if chosen is None:
        return
    known = [statistics[layer, s].logs for s in (HEAD_VALUES, HEAD_OUTPUTS) if (layer, s) in low]
    values, outputs = _one_left(*chosen, torch.stack(known).amax(0))
    decision.heads[layer] = (
        values.nonzero().flatten().tolist(),
        outputs.nonzero().flatten().tolist(),
    )


def _decide_inputs(
    decision: Decision,
    inputs: Collection[str],
    low: Mapping[Key, Tensor],
    statistics: Mapping[Key, Statistic],
) -> None:
    """Columns of inputs of the network, where nobody else has a say; one always stays."""
    for (name, side), said in low.items():
        gone = said.nonzero().flatten().tolist() if side == IN and name in inputs else []
        if gone and len(gone) == len(said):
            gone = _but_best(gone, statistics[name, side])
        if gone:
            decision.inputs[name] = gone
            decision.columns[name, IN] = set(gone)


def with_units(decision: Decision, groups: Sequence[Group]) -> Decision:
    """The decision with all weights of units that nobody makes or nobody reads: those units are taken out."""
    rows = {layer: set(units) for layer, units in decision.rows.items()}
    columns = {key: set(units) for key, units in decision.columns.items()}
    for group in groups:
        if group.obstacle is not None:
            continue
        makers, readers = group.on(OUT), group.on(IN, OWN)
        for unit in range(group.size):
            unmade = all(rows.get(m.layer, set()).issuperset(m.places[unit]) for m in makers)
            unread = all(
                columns.get((m.layer, m.side), set()).issuperset(m.places[unit]) for m in readers
            )
            if unmade or (unread and readers):
                for m in makers:
                    rows.setdefault(m.layer, set()).update(m.places[unit])
                for m in readers:
                    columns.setdefault((m.layer, m.side), set()).update(m.places[unit])
    return Decision(rows, columns, decision.heads, decision.inputs)


def keep_masks(net: nn.Module, decision: Decision) -> dict[str, Tensor]:
    """For each weight by name, False where it is set to 0; weights that stay whole are left out."""
    keep: dict[str, Tensor] = {}

    def drop(layer: str, parts: Mapping[str, Tensor]) -> None:
        for name, gone in parts.items():
            full = f"{layer}.{name}" if layer else name
            keep[full] = keep.get(full, torch.ones_like(gone)) & ~gone

    for layer, units in decision.rows.items():
        drop(layer, marked(net.get_submodule(layer), OUT, units))
    for (layer, side), units in decision.columns.items():
        drop(layer, marked(net.get_submodule(layer), side, units))
    for layer, (values, outputs) in decision.heads.items():
        module = net.get_submodule(layer)
        assert isinstance(module, nn.MultiheadAttention)
        drop(layer, _head_parts(module, values, outputs))
    return {name: mask for name, mask in keep.items() if not bool(mask.all())}


def _head_parts(
    module: nn.MultiheadAttention, values: Sequence[int], outputs: Sequence[int]
) -> dict[str, Tensor]:
    """Entries of the maps into heads and from them to outputs that belong to these heads."""
    size = module.embed_dim // module.num_heads

    def rows(heads: Sequence[int]) -> Tensor:
        at = torch.zeros(module.num_heads, dtype=torch.bool)
        at[list(heads)] = True
        return at.repeat_interleave(size)

    packed = module.in_proj_weight is not None
    either = rows([*values, *outputs])[:, None]  # to what a dead head attends does not matter
    parts = {
        "q_proj_weight": either,
        "k_proj_weight": either,
        "v_proj_weight": rows(values)[:, None],
    }
    if packed:
        parts = {"in_proj_weight": torch.cat(list(parts.values()))}
    parts["out_proj.weight"] = rows(outputs)
    return {name: gone.expand_as(module.get_parameter(name)) for name, gone in parts.items()}
