"""What has been trained, wherever a model is asked for: `kasuri.fit` gives one."""

from typing import TypeVar

from kasuri.objectives.elbo import Objective

Model = TypeVar("Model")


class Trained:
    """Holds the objective of a training run: network, prior and likelihood."""

    objective: Objective


def objective_of(model: Model | Trained) -> Model | Objective:
    """The objective of what `kasuri.fit` gave; anything else as it is.

    Examples:
        >>> objective_of(3)
        3
    """
    return model.objective if isinstance(model, Trained) else model
