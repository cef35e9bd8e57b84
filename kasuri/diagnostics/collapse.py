"""Whether a posterior has learned anything: how much of it is still, or again, the prior.

In a wide network at temperature 1 the KL outweighs the data, and the best posterior is the prior itself.
Before scores show it, the weights do: their marginal distributions are those of the prior.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.diagnostics.reference.joint import LogJoint
from kasuri.inputs import take
from kasuri.likelihoods import Gaussian
from kasuri.objectives.elbo import ELBO
from kasuri.posteriors.base import Posterior
from kasuri.prediction.evaluate import evaluate
from kasuri.prediction.figures import at_its_scale, histogram, kl_by_name
from kasuri.priors.base import Prior
from kasuri.priors.normal import normal_precisions
from kasuri.streams import mix, normal_like, seeded
from kasuri.training.batches import tensors

SAME = 0.01  # nats: two distributions so close give no event probabilities more than 0.07 apart
WIDE, NARROW = 1.5, 0.01  # of a standard deviation, in units of the prior's
EXAMPLES = 512  # at most so many are used
END = 10**9  # a step after every schedule's end


@dataclass(frozen=True)
class LayerState:
    """One random weight against its prior; shares are None if the prior is not a fixed normal one.

    Args:
        name: of the weight.
        shape: of the weight.
        kl: of all of them, in nats; None if the prior ties it to other weights.
        at_prior: share of weights whose marginal KL from the prior is below 0.01 nats: they cannot be told
            from the prior. (Of other than normal families: by their first two moments.)
        wide: share of weights with a standard deviation above 1.5 times the prior's.
        narrow: share of weights with one below 0.01 times the prior's.
        snr: histogram of log10 |mean| / std; None for a point estimate.
    """

    name: str
    shape: tuple[int, ...]
    kl: float | None
    at_prior: float | None
    wide: float | None
    narrow: float | None
    snr: dict[str, list[float]] | None

    @property
    def weights(self) -> int:
        """Their number."""
        return math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix, not a bias or another vector."""
        return len(self.shape) >= 2

    @property
    def kl_per_weight(self) -> float | None:
        """Nats per weight."""
        return None if self.kl is None else self.kl / self.weights


@dataclass(frozen=True)
class Collapse:
    """How much of a posterior is its prior.

    Args:
        layers: every random weight.
        kl: of the whole network, in nats.
        kl_share: the KL's part η · KL / p of the loss on the given data, |NLL| being the rest; None without
            data or objective.
        predictive_ratio: variance of the outputs over draws of the posterior, in units of that over draws
            of the prior, both averaged over the given inputs: near 1 if predictions are those of
            the prior; None without data or if the prior cannot be drawn from.
    """

    layers: tuple[LayerState, ...]
    kl: float
    kl_share: float | None = None
    predictive_ratio: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """A table for the terminal."""
        lines = [f"{'weight':<24}{'weights':>10}{'KL':>11}{'per weight':>12}{'at the prior':>14}"]
        for layer in self.layers:
            kl = "–" if layer.kl is None else f"{layer.kl:.1f}"
            each = "–" if layer.kl_per_weight is None else f"{layer.kl_per_weight:.3f}"
            share = "–" if layer.at_prior is None else f"{layer.at_prior:.1%}"
            lines.append(f"{layer.name:<24}{layer.weights:>10,}{kl:>11}{each:>12}{share:>14}")
        last = f"KL {self.kl:.1f} nats"
        if self.kl_share is not None:
            last += f", {self.kl_share:.0%} of the loss"
        if self.predictive_ratio is not None:
            last += f"; variance of the outputs {self.predictive_ratio:.3g} of the prior's"
        return "\n".join([*lines, last])


def collapse_check(
    model: nn.Module,
    data: Any = None,
    *,
    prior: Prior | None = None,
    samples: int = 32,
    seed: int = 0,
) -> Collapse:
    """Compare a posterior with its prior, layer by layer and in its predictions.

    Args:
        model: a kasuri.ELBO; or a converted network, with `prior`.
        data: (x, y), or anything with attributes x and y; at most 512 examples are used. Without them
            only weights are compared.
        prior: of a bare network.
        samples: draws of posterior and prior.
        seed: of the draws.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(50, 10), kasuri.MeanField(scale=1.0, noise=0.0))
        >>> with torch.no_grad():
        ...     for _, q in kasuri.named_posteriors(bnn):
        ...         _ = q.loc.zero_()
        >>> collapse = collapse_check(bnn, prior=kasuri.Normal(1.0))
        >>> [layer.at_prior for layer in collapse.layers], round(collapse.kl, 3)
        ([1.0, 1.0], 0.0)
    """
    elbo = _objective(model, prior)
    shares = kl_by_name(elbo)
    layers, precisions = [], {}
    for law, names in elbo.groups():
        posteriors = dict(zip(names, elbo._posteriors[elbo.governed.index(names)], strict=True))
        fixed = at_its_scale(law, list(posteriors.values()))
        for name, q in posteriors.items():
            precisions[name] = normal_precisions(fixed, q.shape)
            layers.append(_state(name, q, shares.get(name), precisions[name]))
    whole = float(elbo.kl().detach())
    if data is None:
        return Collapse(tuple(layers), whole)
    x, y = tensors(data)
    few = take(x, slice(EXAMPLES)), y[:EXAMPLES]
    share = _share(elbo, few, samples, seed) if model is elbo else None
    return Collapse(tuple(layers), whole, share, _ratio(elbo, few, precisions, samples, seed))


def _objective(model: nn.Module, prior: Prior | None) -> ELBO:
    if isinstance(model, ELBO):
        if prior is not None:
            raise ValueError("collapse_check(elbo, prior=...): the objective has its own prior")
        return model
    if prior is None:
        raise ValueError(
            "collapse_check(bnn): a network does not know its prior; give the objective, "
            "collapse_check(elbo), or prior=kasuri.HeNormal()"
        )
    return ELBO(model, Gaussian(1.0), prior, num_data=1)


@torch.no_grad()
def _state(name: str, q: Posterior, kl: float | None, precisions: Tensor | None) -> LayerState:
    mean, variance = q.mean.double().cpu(), q.variance.double().cpu()
    if not bool((variance > 0).all()):
        return LayerState(name, tuple(q.shape), kl, None, None, None, None)
    at_prior = wide = narrow = None
    if precisions is not None:
        width = variance * precisions
        each = 0.5 * (mean.square() * precisions + width - 1 - width.log())
        marks = each < SAME, width > WIDE**2, width < NARROW**2
        at_prior, wide, narrow = (float(mark.double().mean()) for mark in marks)
    ratio = (mean.abs() / variance.sqrt()).clamp(min=1e-6).log10().reshape(-1)
    snr = histogram(ratio) if bool(ratio.isfinite().all()) else None
    return LayerState(name, tuple(q.shape), kl, at_prior, wide, narrow, snr)


def _share(elbo: ELBO, data: tuple[Any, Tensor], samples: int, seed: int) -> float:
    nll = evaluate(elbo, data, samples=samples, seed=seed)["gibbs_nll"]
    cost = elbo.weight_at(END) * float(elbo.kl().detach()) / elbo.num_data
    return cost / (abs(nll) + cost) if cost else 0.0


@torch.no_grad()
def _ratio(
    elbo: ELBO,
    data: tuple[Any, Tensor],
    precisions: dict[str, Tensor | None],
    samples: int,
    seed: int,
) -> float | None:
    """Mean variance of outputs under the posterior, in units of that under the prior."""
    if any(precision is None for precision in precisions.values()):
        return None
    joint = LogJoint(elbo, data, temperature=1.0)
    if not joint.posteriors:  # point estimates only
        return None
    scales = [precisions[name] for name in joint.posteriors]
    scale = torch.cat([each.rsqrt().reshape(-1) for each in scales if each is not None])
    mine, theirs = [], []
    with seeded(mix(seed, 1)):
        for _ in range(samples):  # one draw at a time: of large networks many would not fit
            weights = joint.mean(draw=True)
            mine.append(joint.outputs(weights, joint.x))
            theirs.append(joint.outputs(normal_like(weights) * scale.to(weights), joint.x))
    own, prior = (float(torch.stack(f).double().var(0).mean()) for f in (mine, theirs))
    return own / prior if prior > 0 and math.isfinite(own) else None
