"""What is recorded while a network trains: signal-to-noise ratios of gradients.

Variances are the unbiased ones (divided by n - 1 for n gradients). With them, gradients that are
pure normal noise have a mean ratio E[g]²/Var[g] of (n - 1)/(n(n - 3)), 0.129 for n = 10: the
floor under every reading.
"""

import copy
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.checks import is_whole
from kasuri.network.random import require_posteriors
from kasuri.objectives.elbo import Objective, Terms
from kasuri.training.callbacks import Callback

_Moments = tuple[Tensor, Tensor]  # mean, and sum of squared deviations from it


class GradientSNR(Callback):
    """Records the signal-to-noise ratio of gradients of posterior parameters at some steps.

    At "s steps" it has seen the gradients of the last `window` of them, takes E[g]²/Var[g] of each
    element of a parameter over the window, and writes down mean and median over the elements whose
    gradient varied. Steps outside of every window cost nothing; inside, two double-precision
    numbers per element are kept. In several processes gradients are the averaged ones.

    As a callback of `kasuri.fit` it reads gradients before they are clipped. In a loop of
    your own call `record(net, step)` after `loss.backward()`, with step = 0, 1, 2, ...

    Args:
        steps: numbers of steps done, at least `window` apart.
        window: number of gradients per reading.

    Examples:
        >>> import kasuri
        >>> x = torch.randn(64, 3)
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(rank=1), bias=False)
        >>> recorder = GradientSNR(steps=[6], window=4)
        >>> elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=64)
        >>> _ = kasuri.fit(elbo, (x, (x[:, 0] > 0).long()), epochs=6, seed=0, callbacks=[recorder])
        >>> [(row["step"], row["parameter"], row["elements"]) for row in recorder.rows]
        [(6, 'loc', 6), (6, 'log_rows', 2), (6, 'log_columns', 3)]
    """

    def __init__(self, steps: Iterable[int], window: int = 10) -> None:
        self.steps = sorted(set(steps))
        if not is_whole(window, 2):
            raise ValueError(f"GradientSNR: window must be at least 2, got {window!r}")
        if not self.steps or any(b - a < window for a, b in pairwise([0, *self.steps])):
            raise ValueError(
                f"GradientSNR: steps must be at least window={window} apart and not before it, got "
                f"{self.steps}"
            )
        self.window = window
        self.rows: list[dict[str, Any]] = []
        self._seen = 0  # gradients of the present window
        self._moments: dict[tuple[str, str], _Moments] = {}  # by posterior and parameter

    def on_step(self, objective: Objective, step: int, terms: Terms) -> None:
        self.record(objective, step)

    def record(self, model: nn.Module, step: int) -> None:
        """Take in the gradients that are there.

        Args:
            model: the converted network, or an objective that has it.
            step: number of steps done before; 0 for the first.
        """
        end = next((end for end in self.steps if end - self.window <= step < end), None)
        if end is None:
            return
        if step == end - self.window:
            self._seen, self._moments = 0, {}
        if self._seen != step - end + self.window:
            raise ValueError(
                f"GradientSNR at {end} steps needs the gradients of the {self.window} steps before, and was "
                f"given step {step} after {self._seen} of them; record every step once, counting from 0"
            )
        self._seen += 1
        posteriors = require_posteriors(model.net if isinstance(model, Objective) else model)
        if all(p.grad is None for q in posteriors.values() for p in q.parameters()):
            raise ValueError(
                "GradientSNR: there are no gradients; call record after loss.backward()"
            )
        for layer, q in posteriors.items():
            for name, p in q.named_parameters():
                if p.requires_grad:
                    gradient = torch.zeros_like(p) if p.grad is None else p.grad
                    before = self._moments.get((layer, name))
                    self._moments[layer, name] = _updated(before, gradient, self._seen)
        if self._seen == self.window:
            self._write_down(end)

    def _write_down(self, end: int) -> None:
        for (layer, parameter), (mean, squares) in self._moments.items():
            varied = squares > 0
            ratio = mean[varied].square() / squares[varied] * (self.window - 1)
            row = {"step": end, "layer": layer, "parameter": parameter, "elements": len(ratio)}
            row["mean"] = float(ratio.mean()) if len(ratio) else None
            row["median"] = float(ratio.quantile(0.5)) if len(ratio) else None
            self.rows.append(row)
        self._seen, self._moments = 0, {}

    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy({"rows": self.rows, "seen": self._seen, "moments": self._moments})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)
        self.rows, self._seen, self._moments = state["rows"], state["seen"], state["moments"]


def _updated(before: _Moments | None, gradient: Tensor, count: int) -> _Moments:
    """Mean and sum of squared deviations after gradient number `count`, by Welford's formulas.

    Equal values leave exactly 0 as the second, which is how constant gradients are recognised.
    """
    value = gradient.detach().double()
    zero = torch.zeros_like(value)
    mean, squares = (moment.to(value.device) for moment in before or (zero, zero))
    difference = value - mean
    mean = mean + difference / count
    return mean, squares + difference * (value - mean)
