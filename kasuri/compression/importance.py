"""How much a posterior needs every weight, row, column and unit.

Whatever the criterion, a row, column or unit is worth Σ signal / Σ noise over its weights:

| criterion   | signal of a weight                     | noise            | a unit is worth              |
|-------------|----------------------------------------|------------------|------------------------------|
| "snr"       | mean²                                  | variance         | its signal-to-noise ratio    |
| "group_ard" | mean² times the other side's precision | variance times it| the same, free of units      |

"log_mode" is the logarithm of the mode of a radius of `kasuri.Radial`, one per row or column. In layers of
other posteriors beside them it is the logarithm of the length of the mean row or column.

Ratios are found by peeling. Dead columns add noise to every row, so that a network with many dead inputs
would seem to need none of its outputs. Hence the least needed row or column is taken away first, then the
least needed of what is left, and so on. What a row or column is worth is the largest ratio that had to go
until it went; keeping all above a threshold is then the same as taking away the worst until none is below.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.compression.units import (
    HEAD_OUTPUTS,
    HEAD_VALUES,
    IN,
    OUT,
    OWN,
    sides_of,
    unit_index,
    units_on,
)
from kasuri.network.random import named_layers, posterior_of
from kasuri.network.views import View
from kasuri.objectives.elbo import ELBO
from kasuri.posteriors.base import Posterior
from kasuri.posteriors.masked import MaskedPosterior, behind_mask
from kasuri.posteriors.point import PointPosterior
from kasuri.priors.base import Prior
from kasuri.priors.relevance import GroupARD

LOG_MODE = "log_mode"
CRITERIA = ("snr", "group_ard", LOG_MODE)
WEIGHTS = "weights"
Key = tuple[str, str]  # name of a module of the plain network (or of a weight), side
Pair = tuple[Tensor, Tensor]  # signal and noise


@dataclass(frozen=True)
class Weight:
    """A weight matrix of the plain network that has a posterior.

    Args:
        posterior: of the weight as a matrix (*blocks, out, in).
        view: from the matrix to the tensor.
        prior: that governs it, if an objective was given.
    """

    posterior: Posterior
    view: View
    prior: Prior | None = None

    @property
    def is_random(self) -> bool:
        """Whether it is more than a point."""
        return not isinstance(self.posterior, PointPosterior)


def network_of(model: nn.Module) -> nn.Module:
    """The network itself, or that of an objective; what torch.compile wraps instead of the wrapper."""
    net = model.bnn if isinstance(model, ELBO) else model
    inner: nn.Module = getattr(net, "_orig_mod", net)
    return inner


def matrices_of(model: nn.Module) -> dict[str, Weight]:
    """Every matrix with a posterior, by the name of its tensor in the plain network."""
    priors: dict[str, Any] = {}
    by_posterior: dict[int, Any] = {}
    if isinstance(model, ELBO):
        for governing, names in zip(model.priors, model.governed, strict=True):
            priors |= {name.removeprefix("_orig_mod."): governing for name in names}
    matrices = {}
    for name, layer, conversion in named_layers(network_of(model)):
        for parameter, view in conversion.views.items():
            full = f"{name}.{parameter}" if name else parameter
            posterior = posterior_of(layer, parameter)
            if not view.vector:  # tied matrices have one posterior, and the prior of the first name
                prior = by_posterior.setdefault(id(posterior), priors.get(full))
                matrices[full] = Weight(posterior, view, prior)
    return matrices


@torch.no_grad()
def signal_and_noise(name: str, weight: Weight, criterion: str) -> tuple[Pair, Pair]:
    """(signal, noise) of a matrix (*blocks, out, in), as rows and as columns sum them.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField(scale=0.5, noise=0.0))
        >>> signal, noise = signal_and_noise("weight", matrices_of(bnn)["weight"], "snr")[0]
        >>> noise[0]
        tensor([0.2500, 0.2500, 0.2500], dtype=torch.float64)
    """
    posterior = weight.posterior
    mean, variance = (part.detach().cpu().double() for part in (posterior.mean, posterior.variance))
    if not bool(mean.isfinite().all() and variance.isfinite().all()):
        raise ValueError(
            f"means or variances of {name!r} are not all finite: this network did not train; take an "
            "earlier checkpoint"
        )
    squares = mean.square()
    if criterion == "group_ard":
        prior = weight.prior if isinstance(weight.prior, GroupARD) else GroupARD()
        rows, columns = (p.cpu().double() for p in prior.precisions(posterior))
        by_row, by_column = columns.unsqueeze(-2), rows.unsqueeze(-1)
        return (squares * by_row, variance * by_row), (squares * by_column, variance * by_column)
    return (squares, variance), (squares, variance)


def quotient(signal: Tensor, noise: Tensor) -> Tensor:
    """Signal / noise; 0 where there is no signal, infinite where there is no noise."""
    return torch.where(signal > 0, signal / noise.clamp(min=0), 0.0)


def peel(
    by_row: Pair,
    by_column: Pair,
    rows: bool = True,
    columns: bool = True,
    entries: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What every row (out,) and column (in,) is worth; with one side alone, its plain ratios.

    Args:
        by_row: signal and noise (out, in) as rows sum them.
        by_column: as columns sum them.
        rows: whether rows may go, and their noise with them.
        columns: whether columns may.
        entries: (out, in), 0 where there is no weight.

    Examples:
        >>> pair = torch.tensor([[4.0, 0.0], [0.1, 0.0]]), torch.ones(2, 2)
        >>> peel(pair, pair)
        (tensor([4.0000, 0.1000]), tensor([4., 0.]))
    """
    entries = torch.ones_like(by_row[0]) if entries is None else entries
    sums = [[part.sum(1) for part in by_row], [part.sum(0) for part in by_column]]
    ratios = [quotient(*side) for side in sums]
    if not (rows and columns):
        return ratios[0], ratios[1]
    # what a side loses with a row (column) is in the parts as the columns (rows) see them
    parts = [by_column, by_row]
    left = [entries.sum(1), entries.sum(0)]
    worth = [torch.full_like(side, math.inf) for side in ratios]
    here = [torch.ones_like(side, dtype=torch.bool) for side in worth]
    highest = 0.0
    for _ in range(sum(map(len, worth))):
        lowest = [float(side.min()) for side in ratios]
        side = 0 if lowest[0] <= lowest[1] else 1
        if not math.isfinite(lowest[side]):
            break
        place, other = int(ratios[side].argmin()), 1 - side
        highest = max(highest, lowest[side])
        worth[side][place], here[side][place] = highest, False
        ratios[side][place] = math.inf
        for total, part in zip(sums[other], parts[side], strict=True):
            total -= part.select(side, place)
            total.clamp_(min=0)
        left[other] = left[other] - entries.select(side, place)
        # without any entry left nothing is known any more: a lone row keeps its last ratio
        known = here[other] & (left[other] > 0)
        ratios[other] = torch.where(known, quotient(*sums[other]), ratios[other])
    return worth[0], worth[1]


@dataclass(frozen=True)
class Statistic:
    """What the units on one side of one layer are worth.

    Args:
        logs: (units,) logarithms of ratios, or log-modes; -inf for what is certainly 0.
        offset: what makes logs of several layers comparable when taken off: 0 for ratios, the largest
            one for radii, whose size means something within one side of one layer only.
    """

    logs: Tensor
    offset: float = 0.0


def statistics_of(
    net: nn.Module, weights: Mapping[str, Weight], criterion: str, sides: frozenset[str]
) -> dict[Key, Statistic]:
    """Statistics of every side of every layer all of whose weights are random, or of single weights.

    Args:
        net: the plain network (`kasuri.collapse`).
        weights: of `matrices_of`.
        criterion: one of the criteria.
        sides: what may go: "rows", "columns", or "weights" one by one.
    """
    weights = {name: weight for name, weight in weights.items() if weight.is_random}
    logs: dict[Key, Tensor] = {}
    if criterion == LOG_MODE and not any(map(_has_radii, weights.values())):
        weights = {}
    if WEIGHTS in sides:
        for name, weight in weights.items():
            logs[name, WEIGHTS] = quotient(*_tensors(name, weight, criterion)[0]).log()
    else:
        for name, module in net.named_modules():
            logs_of_sides = _of_module(name, module, weights, criterion, sides)
            logs |= {(name, side): values for side, values in logs_of_sides.items()}
    if not logs:
        raise ValueError(
            f"compress(criterion={criterion!r}): no layer has such a statistic; "
            '"log_mode" is for kasuri.Radial, and layers need random weights'
        )
    statistics = {}
    for key, values in logs.items():
        finite = values[values.isfinite()]
        offset = float(finite.max()) if criterion == LOG_MODE and len(finite) else 0.0
        statistics[key] = Statistic(values, offset)
    return statistics


def _tensors(name: str, weight: Weight, criterion: str) -> tuple[Pair, Pair]:
    """`signal_and_noise` in the layout of the tensor."""

    def tensors(pair: Pair) -> Pair:
        signal, noise = (weight.view.tensor(part).contiguous() for part in pair)
        return signal, noise

    by_row, by_column = signal_and_noise(name, weight, criterion)
    return tensors(by_row), tensors(by_column)


def _of_module(
    name: str,
    module: nn.Module,
    weights: Mapping[str, Weight],
    criterion: str,
    sides: frozenset[str],
) -> dict[str, Tensor]:
    """Logarithms of what the units of each side of a module are worth."""
    prefix = f"{name}." if name else ""
    if isinstance(module, nn.MultiheadAttention):
        return _heads(prefix, module, weights, criterion)
    if OUT not in sides_of(module):
        return {}
    index = {short: rows for short, rows in unit_index(module, OUT).items() if "bias" not in short}
    known = {short: weights[prefix + short] for short in index if prefix + short in weights}
    if len(known) < len(index):
        return {}
    if criterion == LOG_MODE:
        return _radii(module, known)
    pairs = {short: _tensors(prefix + short, weight, criterion) for short, weight in known.items()}
    if isinstance(module, nn.Embedding):  # its units are columns, and words are no units
        return {OUT: peel(*pairs["weight"], rows=False)[1].log()}

    def summed(side: int, part: int) -> Tensor:
        return _by_units(module, {short: pair[side][part] for short, pair in pairs.items()})

    by_row, by_column = ((summed(side, 0), summed(side, 1)) for side in (0, 1))
    ones = {short: torch.ones_like(pair[0][0]) for short, pair in pairs.items()}
    asked = "rows" in sides, "columns" in sides
    out, ins = peel(by_row, by_column, *asked, entries=_by_units(module, ones))
    read = [side for side in (IN, OWN) if side in sides_of(module)]
    parts = ins.split([units_on(module, side) for side in read])
    return {OUT: out.log()} | {side: part.log() for side, part in zip(read, parts, strict=True)}


def _by_units(module: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
    """Sums over positions and gates: (units made, units read), of recurrent layers their own at the end."""
    made, sums = units_on(module, OUT), []
    for side in (IN, OWN):
        if side in sides_of(module):
            ((name, columns),) = unit_index(module, side).items()
            read, values = units_on(module, side), tensors[name]
            places = (unit_index(module, OUT)[name] * read + columns).expand(values.shape)
            total = values.new_zeros(made * read)
            sums.append(total.index_add(0, places.flatten(), values.flatten()).reshape(made, read))
    return torch.cat(sums, 1)


def _heads(
    prefix: str, module: nn.MultiheadAttention, weights: Mapping[str, Weight], criterion: str
) -> dict[str, Tensor]:
    """Heads as rows of the map to values, and as columns of the map from heads to outputs."""
    if criterion == LOG_MODE:
        return {}  # a head is many rows, whose radii do not add up to one of the head

    def logs(parts: list[Tensor]) -> Tensor:
        signal, noise = (part.reshape(module.num_heads, -1).sum(1) for part in parts)
        return (signal / noise).log()

    logs_of_sides = {}
    for name in (f"{prefix}in_proj_weight", f"{prefix}v_proj_weight"):
        if name in weights:
            pair = _tensors(name, weights[name], criterion)[0]
            logs_of_sides[HEAD_VALUES] = logs([part[-module.embed_dim :] for part in pair])
    last = f"{prefix}out_proj.weight"
    if last in weights:
        logs_of_sides[HEAD_OUTPUTS] = logs(
            [part.T for part in _tensors(last, weights[last], criterion)[1]]
        )
    return logs_of_sides


def _has_radii(weight: Weight) -> bool:
    return hasattr(behind_mask(weight.posterior), "log_modes")


@torch.no_grad()
def _log_modes(weight: Weight) -> tuple[Tensor | None, Tensor | None]:
    """Log-modes of the radii of rows and of columns (of inputs); None for a side without radii.

    Other posteriors have no radii: the logarithms of the lengths of their mean rows and columns stand in.
    Dropped rows and columns of a masked posterior are at -inf.
    """
    posterior = weight.posterior
    if not _has_radii(weight):
        squares = posterior.mean.detach().cpu().double().square()
        inputs = squares.sum(-2).unflatten(-1, (-1, weight.view.positions)).sum(-1)
        return squares.sum(-1).log() / 2, inputs.log() / 2
    base: Any = behind_mask(posterior)
    sides = base.sides()
    log_modes: list[Tensor | None] = [None, None]
    for index, side in enumerate(("rows", "columns")):
        if side in sides:
            modes = base.log_modes(side).detach().cpu().double()
            if isinstance(posterior, MaskedPosterior):
                left = posterior.mask.cpu().any(-1 - index).reshape(*modes.shape, -1).any(-1)
                modes = torch.where(left, modes, -math.inf)
            log_modes[index] = modes
    return log_modes[0], log_modes[1]


def _radii(module: nn.Module, weights: Mapping[str, Weight]) -> dict[str, Tensor]:
    modes = {name: _log_modes(weight) for name, weight in weights.items()}
    logs_of_sides: dict[str, Tensor | None] = {}
    if isinstance(module, nn.Embedding):
        logs_of_sides[OUT] = modes["weight"][1]
    elif isinstance(module, nn.RNNBase):
        size = module.hidden_size
        rows = [rows.reshape(-1, size) for rows, _ in modes.values() if rows is not None]
        # a unit is as strong as the strongest of its gates
        logs_of_sides[OUT] = torch.cat(rows).amax(0) if len(rows) == len(modes) else None
        for side, name in ((IN, "weight_ih_l0"), (OWN, "weight_hh_l0")):
            columns = modes[name][1]
            if columns is not None:
                logs_of_sides[side] = columns.reshape(-1, columns.shape[-1]).amax(0)
    else:
        logs_of_sides[OUT], logs_of_sides[IN] = modes["weight"]
    return {side: logs.flatten() for side, logs in logs_of_sides.items() if logs is not None}


def masks_by_matrix(
    weights: Mapping[str, Weight], criterion: str, threshold: float, sides: frozenset[str]
) -> dict[str, Tensor]:
    """For each matrix by itself, True where a weight stays, in the layout of the matrix.

    A weight goes if its own ratio, or that of its row or column, is below the threshold.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(4, 1), kasuri.MeanField(scale=10.0))
        >>> masks_by_matrix(matrices_of(bnn), "snr", 0.05, frozenset({"weights"}))
        {'weight': tensor([[False, False, False, False]])}
    """
    masks = {}
    for name, weight in weights.items():
        by_row, by_column = signal_and_noise(name, weight, criterion)
        mask = by_row[0] + by_row[1] > 0
        if WEIGHTS in sides:
            mask &= quotient(*by_row) >= threshold
        if sides - {WEIGHTS}:
            rows, columns = "rows" in sides, "columns" in sides
            flat = [p.reshape(-1, *p.shape[-2:]) for pair in (by_row, by_column) for p in pair]
            kept = []
            for parts in zip(*flat, strict=True):
                worth = peel((parts[0], parts[1]), (parts[2], parts[3]), rows, columns)
                stay = torch.ones_like(parts[0], dtype=torch.bool)
                stay &= (worth[0] >= threshold)[:, None] if rows else True
                stay &= (worth[1] >= threshold) if columns else True
                kept.append(stay)
            mask &= torch.stack(kept).reshape(mask.shape)
        masks[name] = mask
    return masks
