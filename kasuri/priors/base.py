"""Priors over weights: what the objective believes before seeing data, and which one governs what.

A prior answers E_q[log p(W)] for posteriors.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from kasuri.checks import matches, near_misses
from kasuri.posteriors.base import Posterior
from kasuri.storage import Storable


class Prior(Storable, nn.Module, ABC):
    """p(W) over the weights of any number of posteriors.

    Attributes:
        of_weights: whether the KL is that of densities of weights, which every governed posterior must have.
    """

    of_weights = True

    @abstractmethod
    def log_prob(self, weight: Tensor) -> Tensor:
        """Elementwise log p at a weight (*blocks, out, in) or vector."""

    @abstractmethod
    def expected_log_prob(self, *posteriors: Posterior) -> Tensor:
        """E_q[log p], summed over the given posteriors."""

    def prepare(self, posteriors: Sequence[Posterior]) -> None:
        """Refuse posteriors that it cannot govern: called once by every objective."""

    def kl(self, *posteriors: Posterior) -> Tensor:
        """KL(q ‖ p) = -entropy(q) - E_q[log p], summed over the given posteriors."""
        entropy = torch.stack([q.entropy() for q in posteriors]).sum()
        return -entropy - self.expected_log_prob(*posteriors)


def assign(
    prior: Prior | Mapping[str, Prior], posteriors: Mapping[str, Posterior]
) -> list[tuple[Prior, tuple[str, ...]]]:
    """Which prior governs which posteriors: [(prior, their names), ...].

    A mapping gives priors by glob over parameter or module names ("conv*", "fc1", "*.bias"); the
    first pattern that matches wins. Every weight needs a prior and every pattern a weight.
    """
    if isinstance(prior, Prior):
        return [(prior, tuple(posteriors))]
    names_of: dict[str, list[str]] = {pattern: [] for pattern in prior}
    for name in posteriors:
        pattern = next((p for p in prior if matches(p, name)), None)
        if pattern is None:
            raise ValueError(
                f"no prior for {name!r}: no pattern of {list(prior)} matches it; add a last pattern for "
                'the rest, e.g. "*": kasuri.Normal(1.0)'
            )
        names_of[pattern].append(name)
    for pattern, names in names_of.items():
        if not names:
            raise ValueError(
                f"the prior pattern {pattern!r} governs no weight (an earlier pattern may have "
                f"taken its weights): {near_misses(pattern, posteriors)}"
            )
    return [(prior[pattern], tuple(names)) for pattern, names in names_of.items()]
