"""How much a posterior needs every weight, row, column and unit.

Whatever the criterion, a row, column or unit is worth Σ signal / Σ noise over its weights:

| criterion   | signal of a weight                     | noise            | a unit is worth              |
|-------------|----------------------------------------|------------------|------------------------------|
| "snr"       | mean²                                  | variance         | its signal-to-noise ratio    |
| "group_ard" | mean² times the other side's precision | variance times it| the same, free of units      |

"log_mode" is the logarithm of the mode of a radius of `kasuri.Radial`, one per row or column of a linear
layer or convolution, relative to the largest on its side: what the size of a radius means differs from side
to side. In such layers with other posteriors the lengths of mean rows and columns stand in for modes.

Ratios are found by peeling. Dead columns add noise to every row, so that a network with many dead inputs
would seem to need none of its outputs. Hence the least needed row or column is taken away first, then the
least needed of what is left, and so on. What a row or column is worth is the largest ratio that had to go
until it went; keeping all above a threshold is then the same as taking away the worst until none is below.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from kasuri.compression.units import (
    HEAD_OUTPUTS,
    HEAD_VALUES,
    IN,
    OUT,
    OWN,
    Key,
    sides_of,
    unit_index,
    units_on,
)
from kasuri.network.random import full_name, named_layers, named_posteriors, posterior_of
from kasuri.network.views import View
from kasuri.objectives.elbo import ELBO
from kasuri.posteriors.base import Posterior
from kasuri.posteriors.masked import MaskedPosterior, behind_mask
from kasuri.priors.base import Prior
from kasuri.priors.relevance import GroupARD

LOG_MODE = "log_mode"
Criterion = Literal["snr", "group_ard", "log_mode"]
WEIGHTS = "weights"


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


def network_of(model: nn.Module) -> nn.Module:
    """The network itself, or that of an objective; what torch.compile wraps instead of the wrapper."""
    net = model.bnn if isinstance(model, ELBO) else model
    inner: nn.Module = getattr(net, "_orig_mod", net)
    return inner


def matrices_of(model: nn.Module) -> dict[str, Weight]:
    """Every matrix with a posterior, by the name of its tensor in the plain network."""
    priors: dict[int, Prior] = {}
    if isinstance(model, ELBO):
        posteriors = dict(named_posteriors(model.bnn))
        priors = {id(posteriors[name]): prior for prior, names in model.groups() for name in names}
    matrices = {}
    for name, layer, conversion in named_layers(network_of(model)):
        for parameter, view in conversion.views.items():
            posterior = posterior_of(layer, parameter)
            if not view.vector:
                prior = priors.get(id(posterior))
                matrices[full_name(name, parameter)] = Weight(posterior, view, prior)
    return matrices


@torch.no_grad()
def signal_and_noise(name: str, weight: Weight, criterion: str) -> Tensor:
    """(signal, noise) of a matrix as rows sum them, then as columns do: (2, 2, *blocks, out, in).

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
    parts = torch.stack([mean.square(), variance])
    if criterion != "group_ard":
        return parts.expand(2, *parts.shape)
    prior = weight.prior if isinstance(weight.prior, GroupARD) else GroupARD()
    rows, columns = (p.cpu().double() for p in prior.precisions(posterior))
    return torch.stack([parts * columns.unsqueeze(-2), parts * rows.unsqueeze(-1)])


def quotient(signal: Tensor, noise: Tensor) -> Tensor:
    """Signal / noise; 0 where there is no signal, infinite where there is no noise."""
    return torch.where(signal > 0, signal / noise.clamp(min=0), 0.0)


def peel(
    parts: Tensor, rows: bool = True, columns: bool = True, entries: Tensor | None = None
) -> list[Tensor]:
    """What every row (out,) and column (in,) is worth; with one side alone, its plain ratios.

    Args:
        parts: (2, 2, out, in): signal and noise as rows sum them, and as columns do.
        rows: whether rows may go, and their noise with them.
        columns: whether columns may.
        entries: (out, in), 0 where there is no weight.

    Examples:
        >>> pair = torch.tensor([[[4.0, 0.0], [0.1, 0.0]], [[1.0, 1.0], [1.0, 1.0]]])
        >>> peel(torch.stack([pair, pair]))
        [tensor([4.0000, 0.1000]), tensor([4., 0.])]
    """
    entries = torch.ones_like(parts[0, 0]) if entries is None else entries
    sums = [parts[0].sum(2), parts[1].sum(1)]
    ratios = [quotient(*side) for side in sums]
    if not (rows and columns):
        return ratios
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
        # what columns (rows) lose with a row (column) is in the parts as columns (rows) see them
        sums[other] = (sums[other] - parts[other].select(1 + side, place)).clamp(min=0)
        left[other] = left[other] - entries.select(side, place)
        # without any entry left nothing is known any more: a lone row keeps its last ratio
        known = here[other] & (left[other] > 0)
        ratios[other] = torch.where(known, quotient(*sums[other]), ratios[other])
    return worth


def statistics_of(
    net: nn.Module, weights: Mapping[str, Weight], criterion: str, sides: frozenset[str]
) -> dict[Key, Tensor]:
    """Logarithms of what the units on every side of every layer are worth, if all its weights are random.

    Ratios, or relative modes; -inf for what is certainly 0. Or the same of single weights, by name and
    "weights".

    Args:
        net: the plain network (`kasuri.collapse`).
        weights: of `matrices_of`.
        criterion: one of the criteria.
        sides: what may go: "rows", "columns", or "weights" one by one.
    """
    weights = {name: weight for name, weight in weights.items() if not weight.posterior.certain}
    logs: dict[Key, Tensor] = {}
    if criterion == LOG_MODE and not any(map(_has_radii, weights.values())):
        weights = {}
    if WEIGHTS in sides:
        for name, weight in weights.items():
            logs[name, WEIGHTS] = quotient(*_tensors(name, weight, criterion)[0]).log()
    else:
        for name, module in net.named_modules():
            start = full_name(name, "")
            mine = {n.removeprefix(start): w for n, w in weights.items() if n.startswith(start)}
            for side, values in _of_module(name, module, mine, criterion, sides).items():
                logs[name, side] = values
    if not logs:
        raise ValueError(
            f"compress(criterion={criterion!r}): no layer has such a statistic; "
            '"log_mode" is for kasuri.Radial, and layers need random weights'
        )
    return logs


def _tensors(name: str, weight: Weight, criterion: str) -> Tensor:
    """`signal_and_noise` in the layout of the tensor: (2, 2, *tensor)."""
    parts = signal_and_noise(name, weight, criterion).flatten(0, 1)
    return torch.stack([weight.view.tensor(part) for part in parts]).unflatten(0, (2, 2))


def _of_module(
    name: str,
    module: nn.Module,
    weights: Mapping[str, Weight],
    criterion: str,
    sides: frozenset[str],
) -> dict[str, Tensor]:
    """Logarithms of what the units of each side of a module are worth; `weights` by name in it."""
    if isinstance(module, nn.MultiheadAttention):
        return {} if criterion == LOG_MODE else _heads(name, module, weights, criterion)
    if OUT not in sides_of(module):
        return {}
    index = [short for short in unit_index(module, OUT) if "bias" not in short]
    if any(short not in weights for short in index):
        return {}
    if criterion == LOG_MODE:
        is_affine = isinstance(module, nn.Linear | _ConvNd)  # elsewhere a unit is not one row
        return _log_modes(weights["weight"]) if is_affine else {}
    tensors = {
        short: _tensors(full_name(name, short), weights[short], criterion) for short in index
    }
    if isinstance(module, nn.Embedding):  # its units are columns, and words are no units
        return {OUT: peel(tensors["weight"], rows=False)[1].log()}
    read = [side for side in (IN, OWN) if side in sides_of(module)]
    tables = torch.cat([_by_units(module, side, tensors) for side in read], -1)
    asked = "rows" in sides, "columns" in sides
    out, ins = peel(tables[:4].unflatten(0, (2, 2)), *asked, entries=tables[4])
    parts = ins.split([units_on(module, side) for side in read])
    return {OUT: out.log()} | {side: part.log() for side, part in zip(read, parts, strict=True)}


def _by_units(module: nn.Module, side: str, tensors: Mapping[str, Tensor]) -> Tensor:
    """The four parts, and the number of weights, between units made and units read: (5, made, read)."""
    made, read = units_on(module, OUT), units_on(module, side)
    ((name, columns),) = unit_index(module, side).items()
    parts = tensors[name].flatten(0, 1)
    values = torch.cat([parts, torch.ones_like(parts[:1])])
    places = (unit_index(module, OUT)[name] * read + columns).expand(values.shape[1:])
    total = values.new_zeros(5, made * read)
    return total.index_add(1, places.flatten(), values.flatten(1)).unflatten(1, (made, read))


def _heads(
    name: str, module: nn.MultiheadAttention, weights: Mapping[str, Weight], criterion: str
) -> dict[str, Tensor]:
    """Heads as rows of the map to values, and as columns of the map from heads to outputs."""

    def logs(short: str, by: int) -> Tensor:
        """Ratios of heads, by rows (0) or columns (1); of maps in one matrix, that to values is the last."""
        parts = _tensors(full_name(name, short), weights[short], criterion)[by]
        rows = parts.mT if by else parts[:, -module.embed_dim :]
        return quotient(*rows.reshape(2, module.num_heads, -1).sum(2)).log()

    values = next((n for n in ("in_proj_weight", "v_proj_weight") if n in weights), None)
    logs_of_sides = {} if values is None else {HEAD_VALUES: logs(values, 0)}
    if "out_proj.weight" in weights:
        logs_of_sides[HEAD_OUTPUTS] = logs("out_proj.weight", 1)
    return logs_of_sides


def _has_radii(weight: Weight) -> bool:
    return hasattr(behind_mask(weight.posterior), "log_modes")


@torch.no_grad()
def _log_modes(weight: Weight) -> dict[str, Tensor]:
    """Relative log-modes of the radii of rows (as OUT) and columns (of inputs, as IN), where there are radii.

    Dropped rows and columns of a masked posterior are at -inf.
    """
    posterior = weight.posterior
    if not _has_radii(weight):
        squares = posterior.mean.detach().cpu().double().square()
        inputs = squares.sum(-2).unflatten(-1, (-1, weight.view.positions)).sum(-1)
        return {OUT: _relative(squares.sum(-1).log() / 2), IN: _relative(inputs.log() / 2)}
    base: Any = behind_mask(posterior)
    modes = {}
    for name in base.sides():
        values = base.log_modes(name).detach().cpu().double()
        if isinstance(posterior, MaskedPosterior):
            left = posterior.mask.cpu().any(-1 if name == "rows" else -2)
            values = torch.where(left.reshape(*values.shape, -1).any(-1), values, -math.inf)
        modes[OUT if name == "rows" else IN] = _relative(values)
    return modes


def _relative(logs: Tensor) -> Tensor:
    """Less the largest one, if there is one above -inf."""
    return (logs - logs.max().clamp(min=torch.finfo(logs.dtype).min)).flatten()


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
    asked = "rows" in sides, "columns" in sides
    for name, weight in weights.items():
        parts = signal_and_noise(name, weight, criterion)
        signal, noise = parts[0]
        mask = signal + noise > 0
        if WEIGHTS in sides:
            mask &= quotient(signal, noise) >= threshold
        if any(asked):
            blocks = parts.reshape(2, 2, -1, *mask.shape[-2:]).unbind(2)
            worth = zip(*(peel(block, *asked) for block in blocks), strict=True)
            for dim, values in enumerate(worth):
                if asked[dim]:
                    stay = torch.stack(values).reshape(*mask.shape[:-2], -1) >= threshold
                    mask &= stay.unsqueeze(-1 - dim)
        masks[name] = mask
    return masks
