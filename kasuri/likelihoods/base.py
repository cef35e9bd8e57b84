"""What a likelihood is: how a network's output f becomes a distribution over targets y.

The first dimension of f and y counts examples; log-probabilities are summed over all others, so
`log_prob` has shape (batch,) and an ELBO over `num_data` examples needs no further scaling.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from torch import Tensor, nn
from torch import distributions as td

from kasuri.likelihoods.predictions import Draws, Prediction, RealPrediction
from kasuri.storage import Storable


class Likelihood(Storable, nn.Module, ABC):
    """p(y | f), and q and p of its own parameters if it has a posterior over them.

    A likelihood of your own has the three abstract methods. What else it does fits real targets with noise;
    classes have their own `summarise`. One with random parameters of its own
    (`GammaGaussian`) also has `expected_log_prob`, `kl` and perhaps `update`.

    Attributes:
        usual_ratio: temperatures that predict well are around this number · data / weights.
        rise: from which share of that to which a temperature rises during training.
    """

    usual_ratio: ClassVar[float] = 1.0
    rise: ClassVar[tuple[float, float]] = (
        0.25,
        3.0,
    )  # colder, and a learned noise becomes too small

    @abstractmethod
    def forward(self, f: Tensor) -> td.Distribution:
        """The distribution of targets given outputs f (batch, ...)."""

    @abstractmethod
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log p(y | f) of each example, (batch,); parameters with a posterior are integrated out."""

    @abstractmethod
    def moments(self, f: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Mean, variance and entropy of the targets for one draw f; None where it has no use."""

    def summarise(self, draws: Draws) -> Prediction:
        """The prediction made of accumulated draws."""
        return RealPrediction(draws)

    def prediction(self, fs: Iterable[Tensor]) -> Prediction:
        """The prediction made of outputs (batch, ...) of several functions, all equally probable.

        Examples:
            >>> import kasuri, torch
            >>> kasuri.Categorical().prediction([torch.zeros(5, 2), torch.ones(5, 2)]).mean.shape
            torch.Size([5, 2])
        """
        draws = Draws()
        for f in fs:
            draws.add(f.unsqueeze(0), self)
        return self.summarise(draws)

    def expected_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """E log p(y | f, parameters) under the posterior of its own parameters: the ELBO's term, (batch,).

        By Jensen at most `log_prob`; the same if there is no such posterior.
        """
        return self.log_prob(f, y)

    def kl(self) -> Tensor | None:
        """KL of the posterior over its own parameters to their prior, in nats; None without one."""
        return None

    @property
    def updates(self) -> bool:
        """Whether training has to call `update` at every step."""
        return False

    def update(self, f: Tensor, y: Tensor, num_data: int) -> None:
        """Take a batch (outputs of one draw, targets) into a posterior that is not learned by gradient."""
        raise TypeError(
            f"{type(self).__name__} is learned by gradient: call update only if `updates` is True"
        )

    def score(self, mean: Tensor, y: Tensor) -> dict[str, float]:
        """What people want to see beside the NLL, from predictive means: accuracy, or rmse."""
        if mean.shape != y.shape:
            return {}
        return {"rmse": float((mean - y).double().square().mean().sqrt())}


def per_example(values: Tensor) -> Tensor:
    """Sums over all dimensions but the first."""
    return values.reshape(values.shape[0], -1).sum(1) if values.dim() > 1 else values


def same_shape(name: str, f: Tensor, y: Tensor) -> None:
    """Refuse what broadcasting would turn into all pairs of examples."""
    if f.shape != y.shape:
        hint = "y.unsqueeze(-1)" if f.shape == (*y.shape, 1) else "y.reshape_as(output)"
        raise ValueError(
            f"{name}: outputs have shape {tuple(f.shape)} but targets {tuple(y.shape)}; "
            f"write {hint} (broadcasting would compare every example with every other)"
        )
