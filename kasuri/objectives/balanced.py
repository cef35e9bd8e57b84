"""The temperature that keeps a wide network's KL from drowning its data: η = τ p / N.

The KL of independent weights is a sum over N of them, the data term a sum over p examples. With the
KL multiplied by η = τ p / N both grow alike: the loss per example is NLL + τ · KL / N, in which neither
the number of data nor the width appears.
"""

import math
from dataclasses import dataclass

from torch import nn

from kasuri.network.random import require_posteriors
from kasuri.storage import Storable


@dataclass(frozen=True)
class Balanced(Storable):
    """A temperature η = τ p / N: p examples, N random weights.

    Args:
        tau: τ, the weight of the KL per random weight.

    Examples:
        >>> import kasuri
        >>> net = nn.Sequential(nn.Linear(4, 50, bias=False), nn.ReLU(), nn.Linear(50, 2, bias=False))
        >>> bnn = kasuri.bayesianize(net, kasuri.MeanField())
        >>> Balanced(0.6).temperature(bnn, num_data=100)
        0.2
    """

    tau: float

    def __post_init__(self) -> None:
        """Refuse what is no temperature."""
        if not (self.tau >= 0 and math.isfinite(self.tau)):
            raise ValueError(f"Balanced(tau={self.tau}): tau must be a finite number, 0 or above")

    def temperature(self, bnn: nn.Module, num_data: int) -> float:
        """η of a network and so many examples."""
        weights = sum(q.numel() for q in require_posteriors(bnn).values())
        return self.tau * num_data / weights
