"""Automatic relevance determination: priors whose precisions follow the posterior.

Weights get precisions of their own (`ARD`) or share them along rows and columns (`GroupARD`). At
the best precisions the KL costs little for weights that are mostly noise, so training
turns what the data do not need into noise around 0; `kasuri.compress` then drops it.

With E = mean² + variance of each weight, KL(q ‖ N(0, 1/α)) = -entropy + ½ Σ (αE - log α + log 2π).
Only entropy and marginal moments enter, so correlated posteriors are as exact as independent ones.
A weight that is certainly 0 (E = 0, as `kasuri.compress` leaves it) counts nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kasuri.checks import is_whole
from kasuri.numerics.precisions import fitted, sum_half_log_ratio
from kasuri.posteriors.base import LOG_TWO_PI, Elementwise, Posterior
from kasuri.priors.base import Prior


class RelevancePrior(Prior, ABC):
    """A prior whose precisions belong to single posteriors, with another one for vectors if wanted."""

    vectors: Prior | None

    def __init__(self, vectors: Prior | None = None) -> None:
        super().__init__()
        if vectors is not None and not isinstance(vectors, Prior):
            raise TypeError(
                f"{type(self).__name__}(vectors={vectors!r}): must be a prior, e.g. kasuri.Normal(1.0)"
            )
        self.vectors = vectors

    @abstractmethod
    def kl_of(self, posterior: Posterior) -> Tensor:
        """KL(q ‖ p) of one posterior under its own precisions."""

    def prepare(self, posteriors: Sequence[Posterior]) -> None:
        """Refuse point estimates, whose KL would fall without bound towards 0."""
        own, others = self.shared_out(posteriors)
        for q in own:
            if q.certain:
                raise ValueError(
                    f"{type(self).__name__} over a point estimate of shape {tuple(q.shape)}: its density is "
                    'unbounded at 0; give it another prior, e.g. {"*.bias": kasuri.Normal(1.0), ...}'
                )
        if self.vectors is not None:
            self.vectors.prepare(others)

    def shared_out(
        self, posteriors: Sequence[Posterior]
    ) -> tuple[list[Posterior], list[Posterior]]:
        """(posteriors under this prior, those that go to the prior of vectors)."""
        if self.vectors is None:
            return list(posteriors), []
        own = [q for q in posteriors if len(q.shape) >= 2]
        return own, [q for q in posteriors if len(q.shape) < 2]

    def kl(self, *posteriors: Posterior) -> Tensor:
        own, others = self.shared_out(posteriors)
        terms = [self.kl_of(q) for q in own]
        if self.vectors is not None and others:
            terms.append(self.vectors.kl(*others))
        return terms[0] if len(terms) == 1 else torch.stack(terms).sum()

    def expected_log_prob(self, *posteriors: Posterior) -> Tensor:
        """E_q[log p] under the precisions that belong to these posteriors."""
        return -self.kl(*posteriors) - torch.stack([q.entropy() for q in posteriors]).sum()

    def log_prob(self, weight: Tensor) -> Tensor:
        """Refused: the precisions follow a posterior, and a weight alone does not say which."""
        raise TypeError(
            f"{type(self).__name__}.log_prob(weight): a weight alone has no precisions; write "
            "prior.expected_log_prob(posterior), or prior.precisions(posterior) for them"
        )


class ARD(RelevancePrior):
    """N(0, 1/α) with a precision α for every weight, always the best one for the posterior.

    α = 1/(mean² + variance). For independent weights KL = ½ Σ log(1 + mean²/variance); correlations
    add their total correlation. There is nothing to learn or to store.

    Args:
        vectors: another prior for biases and other vectors; by default they are treated alike.

    Examples:
        >>> import kasuri
        >>> q = kasuri.MeanField(scale=0.1, noise=0.0)(torch.tensor([[0.1, 0.0]]))
        >>> ARD().kl(q)  # ½ log 2, and nothing for noise around 0
        tensor(0.3466, grad_fn=<_SumHalfLogRatioBackward>)
    """

    def precisions(self, posterior: Posterior) -> Tensor:
        """The best precisions, shaped like the weight: 1/(mean² + variance)."""
        return second_moments(posterior).reciprocal()

    def kl_of(self, posterior: Posterior) -> Tensor:
        """½ Σ log(mean² + variance) - ½ log det covariance."""
        if isinstance(posterior, Elementwise):
            return sum_half_log_ratio(posterior.mean, posterior.scale)
        moments = second_moments(posterior)
        tiny = torch.finfo(moments.dtype).tiny
        logs = torch.where(moments > 0, moments.clamp(min=tiny), 1.0).log().sum()
        return 0.5 * (logs + posterior.numel() * (1 + LOG_TWO_PI)) - posterior.entropy()


class GroupARD(RelevancePrior):
    """N(0, 1/(τ_i γ_j)): precisions shared along rows (outputs) and columns (inputs) of a matrix.

    A row or column that the data do not need becomes noise as a whole. Blocks (gates, groups) have
    precisions of their own.

    Args:
        groups: "rows", "columns" or "both".
        sweeps: alternating steps per evaluation for both. Any number gives the KL of a prior that exists,
            hence a valid bound; 8 are close to the best also when most groups are noise.
        vectors: prior of biases and other vectors; by default kasuri.ARD().

    Examples:
        >>> import kasuri
        >>> q = kasuri.MeanField(scale=0.1, noise=0.0)(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        >>> rows, columns = GroupARD("columns").precisions(q)
        >>> columns.detach().round()
        tensor([  1., 100.])
    """

    vectors: Prior

    def __init__(
        self,
        groups: str = "both",
        sweeps: int = 8,
        vectors: Prior | None = None,
    ) -> None:
        super().__init__(ARD() if vectors is None else vectors)
        if groups not in ("rows", "columns", "both"):
            raise ValueError(f'GroupARD(groups={groups!r}): write "rows", "columns" or "both"')
        if not is_whole(sweeps, 1):
            raise ValueError(f"GroupARD(sweeps={sweeps!r}): must be a whole number, 1 or more")
        self.groups, self.sweeps = groups, sweeps

    def precisions(self, posterior: Posterior) -> tuple[Tensor, Tensor]:
        """(τ, γ) of a matrix, shaped (*blocks, out) and (*blocks, in).

        Only their products mean anything: τ times a constant and γ divided by it is the same prior.
        Here the geometric mean of γ is 1 (with "rows", every γ is 1, and with "columns" every τ).
        """
        rows, columns = fitted(second_moments(posterior).detach(), self.groups, self.sweeps)
        if self.groups == "both":
            gauge = columns.log().mean(-1, keepdim=True).exp()
            rows, columns = rows * gauge, columns / gauge
        return rows.squeeze(-1), columns.squeeze(-2)

    def kl_of(self, posterior: Posterior) -> Tensor:
        """-entropy + ½ Σ (τγE - log τ - log γ + log 2π).

        Fitted precisions are held while E is differentiated: at the best ones the derivative in
        them is 0, so nothing is lost.
        """
        moments = second_moments(posterior)
        rows, columns = fitted(moments.detach(), self.groups, self.sweeps)
        random = moments.detach() > 0
        quadratic = (rows * (moments @ columns.mT)).sum()
        logs = (random.sum(-1, keepdim=True) * rows.log()).sum()
        logs = logs + (random.sum(-2, keepdim=True) * columns.log()).sum()
        return 0.5 * (quadratic - logs + posterior.numel() * LOG_TWO_PI) - posterior.entropy()

    @classmethod
    def restored(cls, options: dict[str, Any]) -> "GroupARD":
        """From a file; files of version 0.2 say how precisions are learned, and there is one way now."""
        options = dict(options)
        learn = options.pop("learn", "closed form")
        if learn != "closed form":
            raise ValueError(
                f"GroupARD(learn={learn!r}) of version 0.2: it must be closed form now"
            )
        return cls(**options)

    def extra_repr(self) -> str:
        return self.groups


def second_moments(posterior: Posterior) -> Tensor:
    """E[W²], elementwise."""
    return posterior.mean.square() + posterior.variance
