"""Priors and the posteriors that they are about."""

from abc import ABC
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.posteriors.base import Posterior
from kasuri.priors.base import Prior, assign


class Governing(nn.Module, ABC):
    """An objective that owns priors of random weights; `govern` belongs into its constructor."""

    priors: nn.ModuleList
    governed: tuple[Any, ...]
    patterns: tuple[str, ...] | None

    def govern(
        self, prior: Prior | Mapping[str, Prior], posteriors: Mapping[str, Posterior]
    ) -> None:
        """Take over a prior, or priors by name patterns, and prepare them for the posteriors."""
        groups = assign(prior, dict(posteriors))
        self.priors = nn.ModuleList(one for one, _ in groups)
        self.governed = tuple(names for _, names in groups)
        self.patterns = tuple(prior) if isinstance(prior, Mapping) else None
        self._posteriors = [[posteriors[name] for name in names] for names in self.governed]
        for (one, _), governed in zip(groups, self._posteriors, strict=True):
            if one.of_weights:
                for q in governed:
                    q.require_density()
            one.prepare(governed)

    def groups(self) -> list[tuple[Prior, tuple[str, ...]]]:
        """Every prior with the names of the posteriors it is about."""
        priors: Any = self.priors
        return list(zip(priors, self.governed, strict=True))

    def weight_kl(self) -> Tensor:
        """KL(q ‖ p) in nats over all random weights, in the parameters' precision."""
        device = next(self.parameters()).device.type
        with torch.autocast(device, enabled=False):
            groups: Any = zip(self.priors, self._posteriors, strict=True)
            terms = [prior.kl(*posteriors) for prior, posteriors in groups]
            return terms[0] if len(terms) == 1 else torch.stack(terms).sum()
