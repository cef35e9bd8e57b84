"""How far a posterior is from the truth, in numbers without units."""

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from kasuri.diagnostics.reference.joint import LogJoint, Truth
from kasuri.objectives.elbo import ELBO
from kasuri.streams import seeded


@dataclass(frozen=True)
class Distance:
    """What separates a posterior q from the truth π; 0, 1, 0, 1 and 0 if they are the same.

    Args:
        mean: root mean square over weights of (E_q w - E_π w) / std_π w.
        spread: geometric mean over weights of std_q w / std_π w.
        predictive_mean: the same as `mean` for outputs at the given inputs.
        predictive_spread: the same as `spread` for outputs.
        kl: KL(q ‖ π) in nats, where π is known exactly; by draws of q.
        kl_error: its standard error.
    """

    mean: float
    spread: float
    predictive_mean: float
    predictive_spread: float
    kl: float | None = None
    kl_error: float | None = None


def distance(elbo: ELBO, truth: Truth, data: Any, x: Any, samples: int = 1000) -> Distance:
    """The distance of an objective's posterior from the truth of the same network, data and prior.

    Args:
        elbo: whose posterior is compared.
        truth: from `conjugate`, `nuts` or `langevin`.
        data: the training data.
        x: inputs at which predictions are compared.
        samples: draws of the posterior; as many of the truth's are used as there are.

    Examples:
        >>> import kasuri
        >>> from torch import nn
        >>> bnn = kasuri.bayesianize(nn.Linear(1, 1, bias=False), kasuri.MeanField(scale=0.5, noise=0.0))
        >>> elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.Normal(1.0), num_data=3)
        >>> data = torch.ones(3, 1), torch.full((3, 1), 2.0)
        >>> with torch.no_grad():
        ...     _ = dict(kasuri.named_posteriors(bnn))["weight"].loc.fill_(1.5)
        >>> truth = kasuri.diagnostics.reference.conjugate(LogJoint(elbo, data))
        >>> found = distance(elbo, truth, data, torch.ones(1, 1))  # N(1.5, 0.5²) is the truth
        >>> abs(found.mean) < 0.2, abs(found.spread - 1) < 0.1, abs(found.kl) < 1e-3
        (True, True, True)
    """
    joint = LogJoint(elbo, data)
    if truth.weights.shape[1:] != (joint.size,):
        raise ValueError(
            f"distance: the truth has {truth.weights.shape[1]} weights and this network {joint.size}; "
            "compare posteriors of the same network"
        )
    with torch.no_grad(), seeded(0):
        draws = joint.draw(samples)
        mine, theirs = (
            torch.stack([joint.outputs(w, x).reshape(-1) for w in each])
            for each in (draws, truth.weights)
        )
    kl, error = (None, None) if truth.exact is None else _divergence(joint, truth, draws)
    return Distance(*_moments(draws, truth.weights), *_moments(mine, theirs), kl, error)


def distances(
    elbos: Mapping[str, ELBO], truth: Truth, data: Any, x: Any, samples: int = 1000
) -> str:
    """A table in Markdown with the distances of several posteriors from the truth.

    The objectives, by name, have the same network, data and prior; the rest is as for `distance`.
    """
    lines = [
        "| posterior | mean | spread | predictive mean | predictive spread | KL |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    for name, elbo in elbos.items():
        *numbers, kl, error = astuple(distance(elbo, truth, data, x, samples))
        cells = [f"{number:.3f}" for number in numbers]
        cells.append("" if kl is None else f"{kl:.3f} ± {error:.3f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _moments(mine: Tensor, theirs: Tensor) -> tuple[float, float]:
    """(rms of the difference of means in units of the truth, geometric mean ratio of spreads)."""
    mine, theirs = mine.double(), theirs.double()
    spread = theirs.std(0).clamp(min=torch.finfo(torch.float64).tiny)
    away = ((mine.mean(0) - theirs.mean(0)) / spread).square().mean().sqrt()
    ratio = (mine.std(0).clamp(min=torch.finfo(torch.float64).tiny) / spread).log().mean().exp()
    return float(away), float(ratio)


def _divergence(joint: LogJoint, truth: Truth, draws: Tensor) -> tuple[float, float]:
    """KL(q ‖ π) by draws, with its standard error.

    E_q[log q - log π], whose noise goes to 0 with the KL, or -H(q) - E_q log π if q has no density.
    """
    assert truth.exact is not None
    logs, own = truth.exact.log_prob(draws.double()), joint.log_posterior(draws)
    each = -logs - joint.entropy() if own is None else own - logs
    return float(each.mean()), float(each.std()) / math.sqrt(len(each))
