"""What a training run leaves behind."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from kasuri.likelihoods.predictions import Prediction
from kasuri.objectives.elbo import Objective
from kasuri.objectives.trained import Trained
from kasuri.prediction.evaluate import evaluate
from kasuri.prediction.predict import predict
from kasuri.training.callbacks import Row


@dataclass(frozen=True)
class Fitted(Trained):
    """What training made.

    Args:
        objective: prior, likelihood and network, at the best validated epoch if there was validation.
        history: one row per epoch.
        best_epoch: the epoch kept (the last without validation).
        seconds: wall time of training and validation.
    """

    objective: Objective
    history: list[Row]
    best_epoch: int
    seconds: float

    @property
    def net(self) -> nn.Module:
        """The trained network."""
        return self.objective.net

    @property
    def temperature(self) -> float | None:
        """The temperature at the epoch kept; None for an ordinary network."""
        return self.history[self.best_epoch - 1].get("temperature")

    def predict(self, x: Any, samples: int = 100, **options: Any) -> Prediction:
        """`kasuri.predict` of the trained network."""
        return predict(self.objective, x, samples, **options)

    def evaluate(self, data: Any, **options: Any) -> dict[str, float]:
        """`kasuri.evaluate` of the trained network."""
        return evaluate(self.objective, data, **options)
