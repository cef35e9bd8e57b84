"""What Bayesian networks are compared with: ensembles, and dropout at test time."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.inputs import run
from kasuri.likelihoods import GammaGaussian
from kasuri.likelihoods.predictions import Draws, Prediction, RealPrediction
from kasuri.network.contexts import evaluating
from kasuri.numerics.shadow import shadow
from kasuri.objectives.elbo import ELBO, Objective
from kasuri.prediction.predict import predict
from kasuri.streams import Stream, globally_seeded, mix

Predictor = Callable[[Any], Prediction]


def ensemble(objectives: Sequence[Objective], samples: int = 20, seed: int = 0) -> Predictor:
    """The equal mixture of several trained networks, for `kasuri.evaluate`.

    With real targets every member keeps the noise it has learned.

    Args:
        objectives: the trained members; those with posteriors count as `samples` networks each, so mix
            either ordinary networks or Bayesian ones.
        samples: draws from the posterior of a member.
        seed: of the draws.

    Examples:
        >>> import kasuri
        >>> members = [kasuri.MaximumLikelihood(nn.Linear(3, 2), kasuri.Categorical()) for _ in range(5)]
        >>> ensemble(members)(torch.randn(4, 3)).mean.shape
        torch.Size([4, 2])
    """
    noises = [one.likelihood for one in objectives]
    tails = [noise.concentration for noise in noises if isinstance(noise, GammaGaussian)]
    if any(not torch.equal(tails[0], each) for each in tails):
        raise ValueError(
            "ensemble: Student-t noise whose degrees of freedom differ between members; write "
            'GammaGaussian(learn="closed form"), where they follow from the number of examples, or Gaussian()'
        )

    def outputs(one: Objective, x: Any, seed: int) -> Sequence[Tensor]:
        if isinstance(one, ELBO):
            drawn = predict(one.net, x, samples, seed=seed, output=one.output)
            return drawn.moments.kept or []
        with evaluating(one.net) as net:
            return [run(net, x, one.output)]

    def predicted(x: Any) -> Prediction:
        draws = Draws([])
        with torch.no_grad():
            for member, one in enumerate(objectives):
                for f in outputs(one, x, mix(seed, member)):
                    draws.add(*one.likelihood.moments(f))
        prediction = objectives[0].likelihood.summarise(draws, ())
        if isinstance(prediction, RealPrediction):
            prediction.own_noise = True
        return prediction

    return predicted


def mc_dropout(objective: Objective, samples: int = 100, seed: int = 0) -> Predictor:
    """The mixture over dropout masks, drawn anew for every example and draw, for `kasuri.evaluate`.

    Examples:
        >>> import kasuri
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
        >>> predict = mc_dropout(kasuri.MaximumLikelihood(net, kasuri.Categorical()), samples=10)
        >>> bool((predict(torch.randn(4, 3)).std > 0).all())
        True
    """

    def predict(x: Any) -> Prediction:
        draws, likelihood = Draws([]), objective.likelihood
        device = next(objective.net.parameters()).device
        with torch.no_grad(), globally_seeded(mix(seed, Stream.DROPOUT), device):
            net = _dropping(objective.net)
            for _ in range(samples):
                draws.add(*likelihood.moments(run(net, x, objective.output)))
        return likelihood.summarise(draws, ())

    return predict


def _dropping(net: nn.Module) -> nn.Module:
    """The network in evaluation mode, except for dropout."""
    net = shadow(net, training=False)
    for module in net.modules():
        module.training = isinstance(module, nn.Dropout)
    return net
