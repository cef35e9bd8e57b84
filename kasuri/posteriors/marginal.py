"""Entropies of parts of a correlated posterior."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from kasuri.posteriors.base import LOG_TWO_PI


class Marginal(ABC):
    """A posterior that knows the entropy of a part of its weights."""

    @abstractmethod
    def marginal_entropy(self, mask: Tensor) -> Tensor:
        """Entropy of the weights where the mask, shaped like the weight, is True, or a lower bound."""

    @abstractmethod
    def settle(self, mask: Tensor) -> None:
        """Take notice of a mask that was loaded with the parameters."""

    def set_apart(self, mask: Tensor) -> None:  # noqa: B027 - most cannot, and do nothing
        """Let what the mask leaves vary without the noise of the rest, if it can; the law stays the same.

        Its log-determinant is a sum then, and training as fast as without a mask.
        """


def less_each(entropy: Tensor, variance: Tensor, dropped: Tensor) -> Tensor:
    """A lower bound of what is left: H(left) = H(all) - H(dropped | left) ≥ H(all) - Σ H(each dropped).

    Args:
        entropy: of all.
        variance: marginal variances.
        dropped: where a weight of all is dropped; shaped like the variances.
    """
    positive = variance.clamp(min=torch.finfo(variance.dtype).tiny)
    logs = torch.where(dropped, positive, 1.0).log().sum()
    return entropy - 0.5 * (logs + dropped.sum().to(logs) * (1 + LOG_TWO_PI))
