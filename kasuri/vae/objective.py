"""The variational auto-encoder: two networks, a latent family, a likelihood, and their ELBO."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from kasuri.checks import between
from kasuri.inputs import run
from kasuri.likelihoods import Bernoulli, Likelihood
from kasuri.network.contexts import drawing
from kasuri.network.random import named_posteriors
from kasuri.objectives import schedules
from kasuri.objectives.elbo import Governing, Objective, Terms
from kasuri.priors.base import Prior
from kasuri.vae.latents import Latent, LatentNormal


class AutoEncoder(nn.Module):
    """Encoder and decoder; its output is that of the decoder at a draw of the latent variables."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, latent: Latent) -> None:
        super().__init__()
        self.encoder, self.decoder, self.latent = encoder, decoder, latent

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of the decoder for inputs x (batch, ...)."""
        return run(self.decoder, self.latent(run(self.encoder, x)).rsample())


class VAE(Governing, Objective):
    """A variational auto-encoder as an objective: minus the ELBO per example.

    log p(x) ≥ E_q log p(x | z) - KL(q(z | x) ‖ N(0, I)), q normal with the numbers that the encoder
    gives, p(x | z) the likelihood at the decoder's output. The KL is in closed form. It explains its
    inputs: targets of a data set (class labels, say) are not looked at.

    `kasuri.fit` takes it as it is. The loss is nll + kl_weight · kl; validation compares minus the whole
    ELBO, whatever the weight, and waits for `patience` only when the weight has reached its end.

    Weights may be random as well: `kasuri.bayesianize` the decoder (or the encoder), and give `prior` and
    `num_data`. The loss then has temperature · KL(weights) / num_data besides, in `kl`.

    Args:
        encoder: x (batch, ...) to `latent.size` numbers, (batch, size).
        decoder: z (batch, latent.dimensions) to what the likelihood takes, shaped like x.
        latent: `DiagonalLatent`, `KTiedLatent`, `MatrixNormalLatent` or `FullLatent`.
        likelihood: kasuri.Bernoulli() for pixels in [0, 1]; kasuri.Gaussian() for real data.
        kl_weight: of all KLs while training warms up. A float or a schedule.
        prior: of random weights, as for `kasuri.ELBO`.
        num_data: number of training examples; needed if weights are random.
        temperature: weight of the KL of random weights that stays.

    Examples:
        >>> import kasuri
        >>> latent = kasuri.vae.MatrixNormalLatent(2, 2)
        >>> vae = kasuri.vae.VAE(nn.Linear(6, latent.size), nn.Linear(latent.dimensions, 6), latent)
        >>> loss, nll, kl = vae((torch.rand(8, 6) > 0.5).float())
        >>> torch.allclose(loss, nll + kl)
        True
    """

    has_targets: ClassVar[bool] = False

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        latent: Latent,
        likelihood: Likelihood | None = None,
        *,
        kl_weight: float | schedules.Schedule = 1.0,
        prior: Prior | Mapping[str, Prior] | None = None,
        num_data: int | None = None,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(latent, Latent):
            raise TypeError(
                f"VAE(latent={latent!r}): must be a family of latent variables, e.g. "
                "kasuri.vae.FullLatent(40); families such as kasuri.FullNormal are about weights"
            )
        between(0, math.inf, temperature=temperature)
        self.likelihood = Bernoulli() if likelihood is None else likelihood
        if not isinstance(self.likelihood, Likelihood) or self.likelihood.updates:
            raise TypeError(
                f"VAE(likelihood={likelihood!r}): must be a likelihood that is fixed or learned by "
                "gradient, e.g. kasuri.Bernoulli() or kasuri.Gaussian()"
            )
        self.networks = AutoEncoder(encoder, decoder, latent)
        self.output = None
        self.kl_weight = schedules.resolve(kl_weight)
        self.num_data, self.temperature = num_data, temperature
        posteriors = dict(named_posteriors(self.networks))
        self.is_bayesian = bool(posteriors)
        if (posteriors or self.likelihood.kl() is not None) and not num_data:
            raise ValueError(
                f"VAE(num_data={num_data}): weights or noise are random, and their KL is divided by the "
                "number of training examples; write num_data=len(train)"
            )
        if (prior is None) == self.is_bayesian:
            raise ValueError(
                "VAE(prior=None): random weights need a prior; write prior=kasuri.HeNormal()"
                if prior is None
                else "VAE(prior=...): neither network has random weights; leave prior out"
            )
        self.govern({} if prior is None else prior, posteriors)

    @property
    def net(self) -> AutoEncoder:
        return self.networks

    @property
    def latent(self) -> Latent:
        return self.networks.latent

    def posterior(self, x: Tensor) -> LatentNormal:
        """q(z | x) for inputs x (batch, ...)."""
        return self.latent(run(self.networks.encoder, x))

    def decode(self, z: Tensor) -> Tensor:
        """The decoder's outputs, what the likelihood takes, for z (batch, n)."""
        return run(self.networks.decoder, z)

    def forward(self, x: Any, y: Tensor | None = None, step: int | None = None) -> Terms:
        """(loss, nll, kl), all per example: loss = nll + kl_weight · kl.

        Args:
            x: inputs, examples along the first dimension; they are also the targets.
            y: not looked at.
            step: number of the training step; needed if the weight is a schedule.
        """
        return super().forward(x, x, step)

    def parts(self, x: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        """(nll, kl) per example, means over the batch."""
        weights = nullcontext() if self.training or not self.is_bayesian else drawing(self.net)
        with weights:
            q = self.posterior(x)
            kl = q.kl().mean() + self.kl_per_example(self.temperature)
            return self._nll_of(self.decode(q.rsample()), x), kl

    def kl_per_example(self, temperature: float) -> Tensor | float:
        """Temperature · KL of random weights / num_data; 0 if there are none."""
        if not self.is_bayesian:
            return 0.0
        assert self.num_data is not None
        return self.weight_kl() * (temperature / self.num_data)

    def scheduled(self) -> dict[str, schedules.Schedule]:
        return {"kl_weight": self.kl_weight}

    def is_warming_up(self, step: int) -> bool:
        """Whether the weight of the KL is below what it ends at."""
        return self.kl_weight(step) < self.kl_weight(schedules.END)

    def held_out(self, x: Any, y: Tensor, samples: int) -> Tensor:
        """Minus the ELBO of each example, the KL whole: what validation compares, (batch,)."""
        with torch.no_grad(), drawing(self.networks):
            return self.minus_elbo(x, samples, self.temperature)

    def minus_elbo(self, x: Tensor, samples: int, temperature: float = 1.0) -> Tensor:
        """Minus the ELBO of each example, (batch,), with so many draws and this weight of the weights' KL."""
        q = self.posterior(x)
        logs = [
            self.likelihood.expected_log_prob(self.decode(q.rsample()), x) for _ in range(samples)
        ]
        return q.kl() - torch.stack(logs).mean(0) + self.kl_per_example(temperature)

    def extra_repr(self) -> str:
        return str(self.latent)
