"""Masked posterior: another posterior some of whose weights are 0 with certainty.

Parameters: those of the other posterior. A dropped weight has mean 0 and no variance, gets no
gradient and counts nothing in entropy, E‖W‖² and number of weights, hence nothing in a KL.
Exact for independent weights, for matrix normals whose whole rows and columns are dropped, and for
`FullNormal`. Where single weights of other correlated rows are dropped, the entropy is a lower bound
(that of those rows minus the dropped ones' own), so that a KL is at most overestimated. Outputs of
correlated ones cannot be drawn directly.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kasuri.posteriors.base import NORMAL_ENTROPY, Builder, Elementwise, Family, Posterior
from kasuri.posteriors.mean_field import MeanField
from kasuri.posteriors.parts import entries


@dataclass(frozen=True, kw_only=True)
class Masked(Family):
    """A family with a mask, which starts with nothing dropped; `kasuri.compress` sets it.

    Args:
        family: of the posterior behind the mask; the other options are its own.

    Examples:
        >>> q = Masked(family=MeanField())(torch.ones(2, 3))
        >>> q.mask.all(), q
        (tensor(True), MaskedElementwise(
          2x3, 6 left
          (base): MeanFieldPosterior(2x3)
        ))
    """

    family: Builder = field(default_factory=MeanField)

    def __call__(self, weight: Tensor) -> "MaskedPosterior":
        return masked(self.family(weight), torch.ones_like(weight, dtype=torch.bool))

    def for_vectors(self) -> Family:
        return self.family.for_vectors() if isinstance(self.family, Family) else self

    def for_kernel(self, positions: int) -> Family:
        if not isinstance(self.family, Family):
            return self
        return replace(self, family=self.family.for_kernel(positions))


class Marginal(ABC):
    """A posterior that knows the entropy of a part of its weights."""

    @abstractmethod
    def marginal_entropy(self, mask: Tensor) -> Tensor:
        """Entropy of the weights where the mask, shaped like the weight, is True, or a lower bound."""

    def set_apart(self, mask: Tensor) -> None:  # noqa: B027 - most cannot, and do nothing
        """Let what the mask leaves vary without the noise of the rest, if it can; the law stays the same.

        Its log-determinant is a sum then, and training as fast as without a mask.
        """


def less_each(entropy: Tensor, variance: Tensor, dropped: Tensor) -> Tensor:
    """A lower bound of what is left: H(left) = H(all) - H(dropped | left) ≥ H(all) - Σ H(each dropped)."""
    positive = variance.clamp(min=torch.finfo(variance.dtype).tiny)
    logs = torch.where(dropped, positive, 1.0).log().sum()
    return entropy - 0.5 * (logs + dropped.sum().to(logs) * 2 * NORMAL_ENTROPY)


class MaskedPosterior(Posterior, ABC):
    """`base`, with 0 wherever `mask` (shaped like the weight) is False."""

    mask: Tensor

    def __init__(self, base: Posterior, mask: Tensor) -> None:
        super().__init__()
        if mask.shape != base.shape or mask.dtype != torch.bool:
            raise ValueError(
                f"a mask {tuple(mask.shape)} of {mask.dtype} for a weight {tuple(base.shape)}: it must be "
                "of bool and of the shape of the weight, True where the weight stays"
            )
        self.base = base
        self.note, self.certain = base.note, base.certain
        self.register_buffer("mask", mask)
        self.left = int(mask.sum())
        self.train(base.training)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Count again what a loaded mask leaves (counting at every KL would wait for the device)."""
        super()._load_from_state_dict(*args, **kwargs)
        self.left = int(self.mask.sum())

    def keep(self, value: Tensor, other: float = 0.0) -> Tensor:
        """The value where the weight stays; no gradient and no infinity comes from elsewhere."""
        return torch.where(self.mask, value, other)

    @property
    def shape(self) -> torch.Size:
        return self.base.shape

    @property
    def mean(self) -> Tensor:
        return self.keep(self.base.mean)

    @property
    def variance(self) -> Tensor:
        return self.keep(self.base.variance)

    def rsample(self) -> Tensor:
        return self.keep(self.base.rsample())

    def pull(self, directions: Tensor) -> Tensor:
        return self.base.pull(self.keep(directions))

    def require_density(self) -> None:
        self.base.require_density()

    def part(self, rows: Tensor, columns: Tensor | None = None) -> Posterior | None:
        """That of the other posterior, masked where something is still dropped."""
        base, mask = self.base.part(rows, columns), entries(self.mask, rows, columns)
        return base if base is None or bool(mask.all()) else masked(base, mask)

    def natural_step(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """That of the other posterior: as if all its weights were there, so steps are never too long."""
        own = {name.removeprefix("base."): gradient for name, gradient in gradients.items()}
        return {f"base.{name}": move for name, move in self.base.natural_step(own).items()}

    def set_apart(self) -> None:
        """Let what is left vary without the noise of what was dropped, if it can; the law stays the same."""
        if isinstance(self.base, Marginal):
            self.base.set_apart(self.mask)

    def family_of_part(self, family: Builder) -> Builder:
        inside = family.family if isinstance(family, Masked) else family
        return Masked(family=self.base.family_of_part(inside))

    def numel(self) -> int:
        return self.left

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.left} left"


class MaskedElementwise(MaskedPosterior, Elementwise):
    """Masked independent weights: as exact as without a mask, with every estimator."""

    base: Elementwise

    @property
    def scale(self) -> Tensor:
        return self.keep(self.base.scale)

    def perturbation(self) -> Tensor:
        return self.keep(self.base.perturbation())

    def sums(self) -> tuple[Tensor, Tensor]:
        """(Σ log scale, Σ mean² + Σ scale²) of the weights that are left."""
        scale = self.base.scale
        logs = self.keep(scale.clamp(min=torch.finfo(scale.dtype).tiny), 1.0).log()
        return logs.sum(), (self.mean.square() + self.keep(scale).square()).sum()

    entropy = Elementwise.entropy


class MaskedCorrelated(MaskedPosterior):
    """Masked weights that depend on each other."""

    def entropy(self) -> Tensor:
        if isinstance(self.base, Marginal):
            return self.base.marginal_entropy(self.mask)
        return less_each(self.base.entropy(), self.base.variance, ~self.mask)


def behind_mask(posterior: Posterior) -> Posterior:
    """The posterior behind a mask; without one, the posterior itself."""
    return posterior.base if isinstance(posterior, MaskedPosterior) else posterior


def masked(posterior: Posterior, mask: Tensor) -> MaskedPosterior:
    """The posterior with 0 wherever the mask is False; masks of a masked one are joined.

    Examples:
        >>> q = masked(MeanField()(torch.ones(3)), torch.tensor([True, False, True]))
        >>> q.mean, q.variance[1]
        (tensor([1., 0., 1.], grad_fn=<WhereBackward0>), tensor(0., grad_fn=<SelectBackward0>))
    """
    if isinstance(posterior, MaskedPosterior):
        return masked(posterior.base, posterior.mask & mask)
    if isinstance(posterior, Elementwise):
        return MaskedElementwise(posterior, mask)
    return MaskedCorrelated(posterior, mask)
