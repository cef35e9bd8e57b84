"""Likelihoods of classes and of yes/no answers."""

import torch.nn.functional as F
from torch import Tensor
from torch import distributions as td

from kasuri.likelihoods.base import Likelihood, per_example, same_shape
from kasuri.likelihoods.predictions import ClassPrediction, Draws, class_entropy


class Categorical(Likelihood):
    """One of C classes; f holds logits, y class numbers.

    Args:
        dim: the dimension of f with the classes: -1 for (batch, C) and (batch, time, C), 1 for
            images of logits (batch, C, height, width).

    Examples:
        >>> import torch
        >>> Categorical().log_prob(torch.zeros(1, 4), torch.tensor([2]))
        tensor([-1.3863])
    """

    usual_ratio = 0.3
    rise = (0.03, 3.0)  # means find the classes before noise hides them

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, f: Tensor) -> td.Categorical:
        return td.Categorical(logits=f.movedim(self.dim, -1))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Logits at the target minus their log-sum-exp, summed over positions."""
        classes_first = f.movedim(self.dim, 1) if f.dim() > 2 else f
        expected = (classes_first.shape[0], *classes_first.shape[2:])
        if f.dim() < 2 or y.shape != expected or y.is_floating_point():
            raise ValueError(
                f"Categorical: targets for outputs of shape {tuple(f.shape)} must be integers of shape "
                f"{expected}, got {tuple(y.shape)} of {y.dtype}; one-hot targets: write y.argmax(-1)"
            )
        return -per_example(F.cross_entropy(classes_first, y, reduction="none"))

    def moments(self, f: Tensor) -> tuple[Tensor, None, Tensor]:
        probs = f.softmax(self.dim)
        return probs, None, class_entropy(probs, self.dim)

    def summarise(self, draws: Draws) -> ClassPrediction:
        return ClassPrediction(draws, self.dim)

    def score(self, mean: Tensor, y: Tensor) -> dict[str, float]:
        return {"accuracy": float((mean.argmax(self.dim) == y).double().mean())}


class Bernoulli(Likelihood):
    """Independent yes/no outputs; f holds logits, y values in [0, 1] of the same shape.

    Examples:
        >>> import torch
        >>> Bernoulli().log_prob(torch.zeros(1, 3), torch.ones(1, 3))
        tensor([-2.0794])
    """

    usual_ratio = 0.3
    rise = (0.03, 3.0)  # means find the classes before noise hides them

    def forward(self, f: Tensor) -> td.Bernoulli:
        return td.Bernoulli(logits=f)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Minus the binary cross-entropy, summed over outputs."""
        same_shape("Bernoulli", f, y)
        return -per_example(F.binary_cross_entropy_with_logits(f, y.to(f.dtype), reduction="none"))

    def moments(self, f: Tensor) -> tuple[Tensor, None, Tensor]:
        probs = f.sigmoid()
        return probs, None, class_entropy(probs, None)

    def summarise(self, draws: Draws) -> ClassPrediction:
        return ClassPrediction(draws, None)

    def score(self, mean: Tensor, y: Tensor) -> dict[str, float]:
        return {"accuracy": float(((mean > 0.5) == (y > 0.5)).double().mean())}
