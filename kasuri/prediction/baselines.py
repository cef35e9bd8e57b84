"""What Bayesian networks are compared with: ensembles, and dropout at test time."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.inputs import run
from kasuri.likelihoods.predictions import Draws, Prediction
from kasuri.numerics.shadow import shadow
from kasuri.objectives.elbo import Objective
from kasuri.objectives.trained import Trained, objective_of
from kasuri.prediction.predict import predict
from kasuri.streams import Stream, mix, seeded, uniform


def ensemble(
    objectives: Sequence[Objective | Trained], samples: int = 20, seed: int = 0
) -> Callable[[Any], Prediction]:
    """The equal mixture of several trained networks, for `kasuri.evaluate`.

    With real targets every member keeps the noise it has learned.

    Args:
        objectives: the trained members, or what `kasuri.fit` gave for each; those with posteriors count as
            `samples` networks each, so mix either ordinary networks or Bayesian ones.
        samples: draws from the posterior of a member.
        seed: of the draws.

    Examples:
        >>> import kasuri
        >>> members = [kasuri.MaximumLikelihood(nn.Linear(3, 2), kasuri.Categorical()) for _ in range(5)]
        >>> ensemble(members)(torch.randn(4, 3)).mean.shape
        torch.Size([4, 2])
    """
    members = [objective_of(member) for member in objectives]
    tails = [getattr(member.likelihood, "concentration", torch.tensor(0)) for member in members]
    if any(tail.tolist() != tails[0].tolist() for tail in tails):
        raise ValueError(
            "ensemble: the Student-t noise of all members must have the same degrees of freedom; write "
            'GammaGaussian(learn="closed form") or Gaussian()'
        )

    def mixture(x: Any) -> Prediction:
        draws = Draws()
        for number, member in enumerate(members):
            pred = predict(member, x, samples, seed=mix(seed, number))
            for likelihood, f in pred.moments.outputs:
                draws.add(f.unsqueeze(0), likelihood)
        return members[0].likelihood.summarise(draws)

    return mixture


def mc_dropout(
    objective: Objective | Trained, samples: int = 100, seed: int = 0
) -> Callable[[Any], Prediction]:
    """The mixture over dropout masks, drawn anew for every example and draw, for `kasuri.evaluate`.

    Examples:
        >>> import kasuri
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
        >>> predict = mc_dropout(kasuri.MaximumLikelihood(net, kasuri.Categorical()), samples=10)
        >>> bool((predict(torch.randn(4, 3)).std > 0).all())
        True
    """
    trained = objective_of(objective)

    def mixture(x: Any) -> Prediction:
        net = _dropping(trained.net)
        with torch.no_grad(), seeded(mix(seed, Stream.DROPOUT)):
            return trained.likelihood.prediction(
                run(net, x, trained.output) for _ in range(samples)
            )

    return mixture


class _Dropping(nn.Dropout):
    """Dropout in evaluation mode too, with masks from `kasuri.streams`."""

    def forward(self, input: Tensor) -> Tensor:
        kept = uniform(input.shape, dtype=input.dtype, device=input.device) >= self.p
        return input * kept / max(1 - self.p, torch.finfo(input.dtype).tiny)


def _dropping(net: nn.Module) -> nn.Module:
    """The network in evaluation mode, except for dropout."""
    net = shadow(net)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.__class__ = _Dropping
    return net
