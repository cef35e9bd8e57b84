"""Real targets with normal noise of unknown size: the precision has a posterior of its own.

y ~ N(f, 1/τ), p(τ) = Gamma(a₀, b₀), q(τ) = Gamma(a, b) with rates b. Two numbers per precision. Exact
are the expected log-likelihood, the KL, and the Student-t that a draw of the weights predicts; that τ and the
weights are independent is the approximation. Functions of (a, b) alone are computed in double precision:
log Γ(a + ½) - log Γ(a) would lose two digits of a nat in single precision at a = 20,000.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch import distributions as td

from kasuri.checks import at_least_one, is_number, one_of
from kasuri.likelihoods.base import Likelihood, same_shape

Learn = Literal["gradient", "closed form"]
_SPREAD = (-10.0, 3.5)  # bounds of log 1/√a: within them log Γ and its gradients are exact enough
_SCALE = (-15.0, 15.0)


class GammaGaussian(Likelihood):
    """Real targets with normal noise of unknown precision τ, y ~ N(f, 1/τ), q(τ) = Gamma(a, rate b).

    Training sees E_q log N(y; f, 1/τ) = ½(ψ(a) - log b) - ½ log 2π - a/2b (y - f)² and, once for all
    data, KL(q ‖ prior). Predictions integrate τ out: each draw of the weights is a Student-t with 2a
    degrees of freedom and scale √(b/a), which has the variance b/(a - 1), infinite if a ≤ 1.

    Temperature and warm-up of an ELBO weigh the KL of the weights, not this one: there is one τ for all
    data, so its prior cannot drown them, and at weight 0 its posterior would shrink to a point. The optimum
    is therefore a = a₀ + n/2, b = b₀ + ½ Σ E(y - f)² over n targets, whatever the temperature.

    Args:
        prior: (a₀, b₀) of the Gamma prior: the noise is believed to be about √(b₀/a₀), as firmly as
            2a₀ targets would say. In units of the targets, which should be standardised.
        learn: "gradient" makes a and b parameters: hand `elbo.parameters()` to the optimiser. "closed
            form" has none: after every step `kasuri.fit`, or `elbo.update(x, y)` in a loop of your own, moves
            them towards the optimum for the batch, by a share batch / num_data; a batch with all data moves
            them there. It costs one forward pass a step.
        outputs: one precision for each of so many outputs (the last dimension of f); None for a
            common one.

    Examples:
        >>> noise = GammaGaussian(learn="closed form")
        >>> noise.update(f=torch.zeros(100, 1), y=torch.full((100, 1), 0.5), num_data=100)
        >>> noise.concentration, noise.rate  # 6 + 100/2, 6 + 100 · 0.5²/2
        (tensor(56.0000, dtype=torch.float64), tensor(18.5000, dtype=torch.float64))
    """

    log_spread: Tensor
    log_scale: Tensor

    def __init__(
        self,
        prior: Sequence[float] = (6.0, 6.0),
        learn: Learn = "gradient",
        outputs: int | None = None,
    ) -> None:
        super().__init__()
        pair = isinstance(prior, Sequence) and len(prior) == 2
        if not pair or not all(is_number(value) and 0 < value < math.inf for value in prior):
            raise ValueError(
                f"GammaGaussian(prior={prior!r}): must be a concentration and a rate, both above 0, e.g. "
                "(6.0, 6.0)"
            )
        one_of(learn=(learn, Learn))
        at_least_one(outputs=outputs)
        self.prior = (float(prior[0]), float(prior[1]))
        self.learn, self.outputs = learn, outputs
        shape = () if outputs is None else (outputs,)
        # the precision's relative standard deviation 1/√a and the noise's scale √(b/a): orthogonal, so that
        # the size of the noise need not wait for the certainty about it, and as quick as a learned scale
        starts = {
            "log_spread": -0.5 * math.log(self.prior[0]),
            "log_scale": 0.5 * math.log(self.prior[1] / self.prior[0]),
        }
        for name, value in starts.items():
            start = torch.full(shape, value)
            if learn == "gradient":
                self.register_parameter(name, nn.Parameter(start))
            else:
                self.register_buffer(name, start)

    @property
    def concentration(self) -> Tensor:
        """Concentration a of the precision's posterior, in double precision: () or (outputs,)."""
        return (-2 * _within(self.log_spread.double(), *_SPREAD)).exp()

    @property
    def rate(self) -> Tensor:
        """Rate b of the precision's posterior, in double precision: () or (outputs,)."""
        return self.concentration * (2 * _within(self.log_scale.double(), *_SCALE)).exp()

    @property
    def scale(self) -> Tensor:
        """√(b/a): the noise's standard deviation if the precision were its mean."""
        return _within(self.log_scale.double(), *_SCALE).exp()

    @property
    def variance(self) -> Tensor:
        """Variance b/(a - 1) of the noise, the precision's uncertainty included; infinite if a ≤ 1."""
        a = self.concentration
        return torch.where(a > 1, self.rate / (a - 1).clamp(min=1e-300), math.inf)

    def forward(self, f: Tensor) -> td.StudentT:
        df, scale = (2 * self.concentration).to(f), self.scale.to(f)
        return td.StudentT(df.expand_as(f), f, scale.expand_as(f))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log of the Student-t density; outputs with a common precision are scored jointly.

        log Γ(a + n/2) - log Γ(a) - n/2 log(2πb) - (a + n/2) log(1 + Σ r² / 2b) of n residuals r.
        """
        squares, count = self._squares(f, y)
        a, b = self.concentration, self.rate
        more = a + 0.5 * count
        constant = torch.lgamma(more) - torch.lgamma(a) - 0.5 * count * (2 * math.pi * b).log()
        tail = torch.log1p((0.5 / b).to(squares) * squares)
        return self._summed(constant.to(squares) - more.to(squares) * tail)

    def expected_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """E_q log N(y; f, 1/τ) = n/2 (ψ(a) - log b - log 2π) - a/(2b) Σ r², summed over outputs."""
        squares, count = self._squares(f, y)
        a, b = self.concentration, self.rate
        constant = 0.5 * count * (torch.digamma(a) - b.log() - math.log(2 * math.pi))
        return self._summed(constant.to(squares) - (0.5 * a / b).to(squares) * squares)

    def _summed(self, logs: Tensor) -> Tensor:
        return logs if self.outputs is None else logs.sum(-1)

    def kl(self) -> Tensor:
        """KL(q(τ) ‖ prior), summed over precisions."""
        concentration, rate = self.concentration.new_tensor(self.prior)
        prior = td.Gamma(concentration, rate, validate_args=False)
        q = td.Gamma(self.concentration, self.rate, validate_args=False)
        return td.kl_divergence(q, prior).sum()

    @property
    def updates(self) -> bool:
        return self.learn == "closed form"

    @torch.no_grad()
    def update(self, f: Tensor, y: Tensor, num_data: int) -> None:
        """One step of the natural gradient: (a, b) moves by a share ρ of the way to the batch's optimum.

        a ← (1 - ρ) a + ρ (a₀ + N n/2), b ← (1 - ρ) b + ρ (b₀ + N/2 · mean Σ (y - f)²)

        for n outputs with a common precision and N examples. ρ = batch / N, at most 1: an average over about
        the last N examples.

        Args:
            f: outputs of the batch for one draw of the weights.
            y: its targets.
            num_data: number of training examples N.
        """
        if not self.updates:
            raise ValueError(
                'update: this noise is learned by gradient; write GammaGaussian(learn="closed form")'
            )
        share = min(1.0, len(y) / num_data)
        squares, count = self._squares(f, y)
        best_a = self.prior[0] + 0.5 * num_data * count
        best_b = self.prior[1] + 0.5 * num_data * squares.double().mean(0)
        a = (1 - share) * self.concentration + share * best_a
        b = (1 - share) * self.rate + share * best_b
        self.log_spread.copy_(-0.5 * a.log())
        self.log_scale.copy_(0.5 * (b / a).log())

    def _squares(self, f: Tensor, y: Tensor) -> tuple[Tensor, int]:
        """Σ r², (batch,) or (batch, outputs), over what shares a precision, and how many r that are."""
        same_shape("GammaGaussian", f, y)
        if self.outputs is not None and (f.dim() < 2 or f.shape[-1] != self.outputs):
            raise ValueError(
                f"GammaGaussian(outputs={self.outputs}): the last dimension of the network's outputs must "
                f"have this size, got shape {tuple(f.shape)}"
            )
        squares = (y - f).square().reshape(f.shape[0], -1, self.outputs or 1)
        sums = squares.sum(1)
        return (sums.squeeze(1) if self.outputs is None else sums), squares.shape[1]

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor, None]:
        return f, self.variance.detach().to(f).expand_as(f), None

    def options(self) -> dict[str, Any]:
        return {"prior": list(self.prior), "learn": self.learn, "outputs": self.outputs}

    def extra_repr(self) -> str:
        sizes = ", ".join(f"{size:.3g}" for size in self.scale.detach().reshape(-1).tolist())
        return f"prior={self.prior}, learn={self.learn!r}, outputs={self.outputs}, scale {sizes}"


def _within(logs: Tensor, low: float, high: float) -> Tensor:
    """Logarithms held between two bounds; the gradient points back from outside."""
    return logs + (logs.clamp(low, high) - logs).detach()
