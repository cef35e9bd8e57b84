"""Criteria: how much a posterior needs every weight, as signal and noise of its entries.

Whatever the criterion, a row, column or unit is worth Σ signal / Σ noise over its weights:

| criterion   | signal of a weight                     | noise            | a unit is worth              |
|-------------|----------------------------------------|------------------|------------------------------|
| "snr"       | mean²                                  | variance         | its signal-to-noise ratio    |
| "group_ard" | mean² times the other side's precision | variance times it| the same, free of units      |
| "ard"       | mean² / (mean² + variance)             | 1                | share the data determine     |
| "kl"        | KL(q ‖ p) of the weight by itself      | 1                | nats per weight              |

"log_mode" and "product_mode" are statistics of the radii of `kasuri.Radial`, one per row or column. In layers
of other posteriors beside them it is the logarithm of the length of the mean row or column.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from kasuri.compression.relevance import finite_double, network_of
from kasuri.network.random import named_layers, posterior_of
from kasuri.network.views import View
from kasuri.objectives.elbo import ELBO
from kasuri.posteriors.base import LOG_TWO_PI, Posterior
from kasuri.posteriors.masked import MaskedPosterior, behind_mask
from kasuri.posteriors.point import PointPosterior
from kasuri.posteriors.radial.posterior import RadialPosterior, Statistic
from kasuri.priors.base import Prior
from kasuri.priors.normal import Normal, NormalPrior
from kasuri.priors.relevance import ARD, GroupARD

RATIOS = ("snr", "group_ard", "ard", "kl")
RADII: dict[str, Statistic] = {"log_mode": "mode", "product_mode": "product_mode"}
CRITERIA = (*RATIOS, *RADII)
SIDES: tuple[Literal["rows", "columns"], ...] = ("rows", "columns")


@dataclass(frozen=True)
class Random:
    """A random weight of the plain network.

    Args:
        posterior: of the weight as a matrix.
        view: from the matrix to the tensor.
        prior: that governs it, if an objective was given.
        governed: all posteriors under that prior.
    """

    posterior: Posterior
    view: View
    prior: Prior | None
    governed: tuple[Posterior, ...] = ()


def check_criterion(criterion: str) -> str:
    """Refuse what does not exist."""
    if criterion not in CRITERIA:
        raise ValueError(
            f"compress(criterion={criterion!r}): write one of {', '.join(map(repr, CRITERIA))}"
        )
    return criterion


def random_weights(model: nn.Module) -> dict[str, Random]:
    """Every random matrix by the name of its tensor in the plain network; points are not random.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField())
        >>> list(random_weights(bnn))
        ['weight']
    """
    net = network_of(model)
    found: dict[str, Random] = {}
    for name, layer, conversion in named_layers(net):
        for parameter, view in conversion.views.items():
            q = posterior_of(layer, parameter)
            if not view.vector and not isinstance(q, PointPosterior):
                full = f"{name}.{parameter}" if name else parameter
                found[full] = Random(q, view, None)
    if isinstance(model, ELBO):
        by_id: dict[int, list[str]] = {id(one.posterior): [] for one in found.values()}
        for name, one in found.items():
            by_id[id(one.posterior)].append(name)
        every = dict(_named(net))
        for prior, names in zip(model.priors, model.governed, strict=True):
            assert isinstance(prior, Prior)
            governed = tuple(every[name] for name in names)
            for q in governed:
                for name in by_id.get(id(q), ()):
                    found[name] = Random(q, found[name].view, prior, governed)
    return found


def _named(net: nn.Module) -> list[tuple[str, Posterior]]:
    return [
        (f"{name}.{parameter}" if name else parameter, posterior_of(layer, parameter))
        for name, layer, conversion in named_layers(net)
        for parameter in conversion.views
    ]


@dataclass(frozen=True)
class Entries:
    """Signal and noise of the weights of one tensor, in its own layout and in double precision.

    Args:
        row: (signal, noise) as rows (outputs) sum them.
        column: (signal, noise) as columns (inputs) sum them.
    """

    row: tuple[Tensor, Tensor]
    column: tuple[Tensor, Tensor]


@torch.no_grad()
def entries_of(name: str, one: Random, criterion: str) -> Entries:
    """Signal and noise of every weight under a criterion of ratios.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField(scale=0.5, noise=0.0))
        >>> signal, noise = entries_of("weight", random_weights(bnn)["weight"], "snr").row
        >>> noise[0]
        tensor([0.2500, 0.2500, 0.2500], dtype=torch.float64)
    """
    q = one.posterior
    mean, variance = (finite_double(name, part) for part in (q.mean, q.variance))

    def tensors(*parts: Tensor) -> tuple[Tensor, Tensor]:
        signal, noise = (one.view.tensor(part).contiguous() for part in parts)
        return signal, noise

    squares = mean.square()
    if criterion == "snr":
        pair = tensors(squares, variance)
    elif criterion == "ard":
        moments = squares + variance
        pair = tensors(torch.where(moments > 0, squares / moments, 0.0), torch.ones_like(squares))
    elif criterion == "kl":
        pair = tensors(_kl(name, one, squares, variance), torch.ones_like(squares))
    else:
        prior = one.prior if isinstance(one.prior, GroupARD) else GroupARD()
        rows, columns = (p.cpu().double() for p in prior.precisions(q))
        by_row, by_column = columns.unsqueeze(-2), rows.unsqueeze(-1)
        return Entries(
            tensors(squares * by_row, variance * by_row),
            tensors(squares * by_column, variance * by_column),
        )
    return Entries(pair, pair)


def _kl(name: str, one: Random, squares: Tensor, variance: Tensor) -> Tensor:
    """KL of every weight by itself, normal with its mean and variance, to its prior."""
    prior = one.prior
    positive = variance.clamp(min=torch.finfo(variance.dtype).tiny)
    if isinstance(prior, ARD):
        log_precision = -(squares + positive).log()
    elif isinstance(prior, GroupARD):
        rows, columns = (p.cpu().double() for p in prior.precisions(one.posterior))
        log_precision = rows.log().unsqueeze(-1) + columns.log().unsqueeze(-2)
    elif isinstance(prior, NormalPrior):
        log_precision = _normal_log_precision(prior, one)
    else:
        given = "the network alone has no prior: hand its kasuri.ELBO to compress"
        if prior is not None:
            given = f"{type(prior).__name__} is none of these: take another criterion"
        raise ValueError(
            f"compress(criterion='kl'), {name!r}: the share of a weight in the KL is known for normal and "
            f'relevance priors, and {given}, or criterion="snr"'
        )
    scaled = log_precision.exp() * (squares + positive)
    kl = 0.5 * (scaled - 1 - log_precision - positive.log())
    return torch.where(variance > 0, kl, 0.0)


def _normal_log_precision(prior: NormalPrior, one: Random) -> Tensor:
    if isinstance(prior, Normal) and prior.learn == "closed form":
        return -2 * prior.fitted_scale(*one.governed).cpu().double().log()
    height = prior.log_prob(torch.zeros(one.posterior.shape, dtype=torch.float64))
    return 2 * height.detach().cpu().double() + LOG_TWO_PI


@torch.no_grad()
def log_modes(one: Random, criterion: str) -> tuple[Tensor | None, Tensor | None]:
    """Log-modes of the radii of rows and of columns (of inputs); None for radii that there are not.

    Other posteriors have no radii: the logarithms of the lengths of their mean rows and columns stand in.
    Dropped rows and columns of a masked posterior are at -inf.
    """
    q = one.posterior
    base = behind_mask(q)
    if not isinstance(base, RadialPosterior):
        squares = q.mean.detach().cpu().double().square()
        inputs = squares.sum(-2).unflatten(-1, (-1, one.view.positions)).sum(-1)
        return squares.sum(-1).log() / 2, inputs.log() / 2
    has = {"rows": base.rows is not None}
    has["columns"] = base.columns is not None or base.column_radii is not None
    found: list[Tensor | None] = [None, None]
    for index, side in enumerate(SIDES):
        if has[side]:
            modes = base.log_modes(side, RADII[criterion])
            modes = modes.detach().cpu().double()
            if isinstance(q, MaskedPosterior):
                alive = q.mask.cpu().any(-1 - index).reshape(*modes.shape, -1).any(-1)
                modes = torch.where(alive, modes, -math.inf)
            found[index] = modes
    return found[0], found[1]


def is_radial(one: Random) -> bool:
    """Whether a weight has radii."""
    q = one.posterior
    return isinstance(behind_mask(q), RadialPosterior)
