"""How standard deviations move while a network trains."""

import copy
from typing import Any

from torch import nn

from kasuri.checks import is_whole
from kasuri.diagnostics.matrices import matrix_posteriors, scale_of
from kasuri.objectives.elbo import Objective, Terms
from kasuri.training.callbacks import Callback


class ScaleDrift(Callback):
    """Records the mean standard deviation of every weight matrix each `every` steps.

    A value at step s is that after s steps, so the first is the initial one. Point estimates
    have none and are left out. In a loop of your own call `record(net, step)`.

    Args:
        every: number of steps between two readings.

    Examples:
        >>> import kasuri
        >>> drift = ScaleDrift(every=2)
        >>> drift.record(kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField()), step=0)
        >>> [(curve["layer"], curve["step"]) for curve in drift.curves]
        [('weight', [0])]
    """

    def __init__(self, every: int = 100) -> None:
        if not is_whole(every, 1):
            raise ValueError(f"ScaleDrift: every must be a whole number, at least 1, got {every!r}")
        self.every = every
        self.curves: list[dict[str, Any]] = []

    def on_step(self, objective: Objective, step: int, terms: Terms) -> None:
        """Take a reading if it is time."""
        if step % self.every == 0:
            self.record(objective, step)

    def record(self, model: nn.Module, step: int) -> None:
        """Take a reading of a network, or of the one an objective has, after `step` steps."""
        net = model.net if isinstance(model, Objective) else model
        curves = {curve["layer"]: curve for curve in self.curves}
        for name, q in matrix_posteriors(net).items():
            scale = scale_of(name, q)
            if scale is None:
                continue
            if name not in curves:
                curves[name] = {"layer": name, "step": [], "mean_scale": []}
                self.curves.append(curves[name])
            curves[name]["step"].append(step)
            curves[name]["mean_scale"].append(float(scale.mean()))

    def state_dict(self) -> dict[str, Any]:
        """The curves."""
        return {"curves": copy.deepcopy(self.curves)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The curves of the interrupted run."""
        self.curves = copy.deepcopy(state["curves"])
