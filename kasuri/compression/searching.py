"""From statistics to levels: one gap per side of every layer, one number for all, or a search."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from kasuri.compression.criteria import RADII
from kasuri.compression.running import run as run_net
from kasuri.compression.statistics import Key, Statistic
from kasuri.compression.thresholds import Trial, bisect, largest_gap
from kasuri.inputs import Labelled
from kasuri.objectives.elbo import ELBO

# what is above this is needed, whatever gaps there are: as much signal as noise
CEILINGS = {"snr": 0.0, "group_ard": 0.0, "ard": math.log(0.5), "kl": math.log(0.5 * math.log(2))}
CANDIDATES = 512
BATCH = 500
Levels = dict[Key, float]
Loss = Callable[[nn.Module], float]


def fixed_levels(statistics: Mapping[Key, Statistic], threshold: float, criterion: str) -> Levels:
    """The same threshold everywhere: a ratio, or for radii a log-mode."""
    if criterion in RADII:
        level = threshold
    else:
        if not threshold >= 0:
            raise ValueError(
                f"compress(threshold={threshold}, criterion={criterion!r}): a number below which a "
                'unit is not needed, 0 or more, e.g. 0.05, or "auto"'
            )
        level = math.log(threshold) if threshold > 0 else -math.inf
    return dict.fromkeys(statistics, level)


def gap_levels(statistics: Mapping[Key, Statistic], criterion: str) -> tuple[Levels, list[Key]]:
    """The largest gap of every side, and where there is none: there only what is certainly 0 goes."""
    levels, gapless = {}, []
    for key, one in statistics.items():
        level, width = largest_gap(one.logs, CEILINGS.get(criterion, math.inf))
        if not width:
            known = one.logs[one.logs > -math.inf]
            level = float(known.min()) if len(known) < len(one.logs) and len(known) else -math.inf
            gapless.append(key)
        levels[key] = level
    return levels, gapless


def searched_levels(
    statistics: Mapping[Key, Statistic],
    loss_at: Callable[[Levels], float],
    tolerance: float,
) -> tuple[Levels, list[Trial]]:
    """The highest common level at which the loss of the masked network stays within a tolerance.

    Args:
        statistics: of all sides.
        loss_at: loss of the masked network at certain levels, on validation data.
        tolerance: by how much it may exceed that of the network as it is.
    """
    common = torch.cat([(one.logs - one.offset).flatten() for one in statistics.values()])
    candidates = common[common.isfinite()].unique().tolist()
    if len(candidates) > CANDIDATES:
        every = torch.linspace(0, len(candidates) - 1, CANDIDATES).long().tolist()
        candidates = [candidates[index] for index in every]
    # just above a candidate, so that the unit itself goes
    candidates = [math.nextafter(value, math.inf) for value in candidates]

    def levels(common: float) -> Levels:
        return {key: common + one.offset for key, one in statistics.items()}

    start = loss_at(levels(-math.inf))
    best, trials = bisect(candidates, lambda level: loss_at(levels(level)), start + tolerance)
    return levels(best), [Trial(-math.inf, start), *trials]


def loss_of(validation: Any, model: nn.Module) -> Loss:
    """A function from a plain network to its validation loss.

    Args:
        validation: such a function; or (x, y), for minus the mean log-likelihood under the objective's
            likelihood.
        model: what was given to compress.
    """
    if callable(validation) and not isinstance(validation, nn.Module):
        return torch.no_grad()(lambda net: float(validation(net)))
    if isinstance(validation, Labelled):
        validation = (validation.x, validation.y)
    if not (isinstance(validation, tuple | list) and len(validation) == 2):
        raise TypeError(
            "compress(validation=...): give (x, y), an object with .x and .y, or a function from a network "
            "to its loss"
        )
    if not isinstance(model, ELBO):
        raise ValueError(
            "compress(bnn, validation=(x, y)): a network alone does not say what its loss is; hand the "
            "kasuri.ELBO to compress, or give validation=lambda net: loss(net(x), y)"
        )
    x, y = validation
    if not len(y):
        raise ValueError("compress(validation=(x, y)): there is no example in them")
    likelihood, output = model.likelihood, model.output

    @torch.no_grad()
    def nll(net: nn.Module) -> float:
        total = 0.0
        for part, targets in _batches(x, y):
            out = run_net(net, part)
            f: Tensor = out if output is None else output(out)
            total += float(likelihood.log_prob(f, targets).double().sum())
        return -total / len(y)

    return nll


def _batches(x: Any, y: Tensor) -> Iterator[tuple[Any, Tensor]]:
    """Examples in parts that fit into a cache; all at once if inputs do not count them first."""
    leaves, spec = tree_flatten(x)
    if not all(isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == len(y) for leaf in leaves):
        yield x, y
        return
    parts = zip(*(leaf.split(BATCH) for leaf in leaves), strict=True)
    for part, targets in zip(parts, y.split(BATCH), strict=True):
        yield tree_unflatten(list(part), spec), targets
