"""What a training run leaves behind."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from kasuri.likelihoods.predictions import Prediction
from kasuri.objectives.elbo import ELBO, Objective
from kasuri.objectives.schedules import Constant
from kasuri.objectives.trained import Trained
from kasuri.prediction.evaluate import evaluate
from kasuri.prediction.predict import predict
from kasuri.training import checkpoint
from kasuri.training.callbacks import Row
from kasuri.training.loop import Run


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


def finished(run: Run, made: bool) -> Fitted:
    """The best state in place; schedules of an objective that `fit` made end at their values there."""
    if run.best_state is not None:
        run.objective.load_state_dict(run.best_state)
    best = run.at.best_epoch or run.at.epoch
    if made and isinstance(run.objective, ELBO):
        row = run.at.history[best - 1]
        run.objective.temperature = Constant(row["temperature"])
        run.objective.kl_weight = Constant(row["kl_weight"])
    return Fitted(run.objective, run.at.history, best, run.at.seconds)


@contextmanager
def leaving_generators() -> Iterator[None]:
    """Random generators afterwards as before: what is made next must not depend on the seed."""
    before = checkpoint.generators()
    try:
        yield
    finally:
        checkpoint.restore_generators(before)
