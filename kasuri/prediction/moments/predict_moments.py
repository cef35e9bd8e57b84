"""Predictions with uncertainty from one pass forward and one backward for each output."""

from typing import Any

import torch
from torch import Tensor, nn

from kasuri.likelihoods import Likelihood
from kasuri.likelihoods.predictions import Draws, Prediction
from kasuri.network.random import require_posteriors
from kasuri.objectives.trained import Trained
from kasuri.prediction.moments.moment_network import MomentNetwork
from kasuri.prediction.moments.points import spread_out
from kasuri.prediction.moments.trace import positional
from kasuri.prediction.predict import Output, model_of, summarise

_NUMBERS = 2**25  # derivatives in weights that are held at once


def predict_moments(
    bnn: nn.Module | Trained,
    x: Any,
    *,
    likelihood: Likelihood | None = None,
    output: Output = None,
) -> Prediction:
    """A prediction without drawing weights: the outputs' means and covariances by moment propagation.

    The outputs of an example are taken as normal. Means and variances of activations go forward through the
    network's graph. The network, smoothed by these variances, is then linearised in its weights,
    f ≈ m + J (w - E w), so that Cov[f] = J Cov[w] Jᵀ: one backward pass for each output. The likelihood
    turns the normal into a prediction, at 256 fixed points of it, which are the prediction's `draws`;
    no network is run for them, and the result is the same at every call.

    The documentation compares it with a thousand draws, architecture by architecture.
    The network's graph is made by torch.export at every call, which takes about a second; to predict often,
    write `kasuri.export(..., kind="variance")` once.

    Args:
        bnn: a network from `bayesianize`; or an ELBO or what `kasuri.fit` gave, whose network, likelihood
            and `output` are used.
        x: a tensor (batch first), a tuple of inputs or a mapping of named inputs.
        likelihood: as for `kasuri.predict`.
        output: takes the tensor out of what the network returns.

    Examples:
        >>> import kasuri
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> bnn = kasuri.bayesianize(net, kasuri.KTied(rank=1, scale=0.1))
        >>> pred = kasuri.predict_moments(bnn, torch.randn(5, 3), likelihood=kasuri.Categorical())
        >>> pred.mean.shape, pred.epistemic.shape
        (torch.Size([5, 2]), torch.Size([5]))
    """
    net, likelihood, output = model_of(bnn, likelihood, output)
    require_posteriors(net)
    names, inputs = positional(x)
    network = MomentNetwork(net, inputs, names, output)
    draws = Draws()
    with torch.no_grad():
        draws.add(spread_out(*in_chunks(network, inputs), network.points), likelihood)
    return summarise(draws, likelihood)


def in_chunks(network: MomentNetwork, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Means and covariances of all examples, as many at a time as fit a few hundred megabytes."""
    chunk = network.affordable(_NUMBERS)
    pieces = zip(*(part.split(chunk) for part in inputs), strict=True)
    means, spreads = zip(*(network.moments(*piece) for piece in pieces), strict=True)
    return torch.cat(means), torch.cat(spreads)
