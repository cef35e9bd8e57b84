"""The signal-to-noise ratio of gradients: of a stack of them, and recorded while a network trains.

Variances are the unbiased ones (divided by n - 1 for n gradients). With them, gradients that are
pure normal noise have a mean ratio E[g]²/Var[g] of (n - 1)/(n(n - 3)), 0.129 for n = 10: the
floor under every reading.
"""

import copy
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.checks import is_whole
from kasuri.network.random import require_posteriors
from kasuri.objectives.elbo import Objective, Terms
from kasuri.training.callbacks import Callback

DEFINITIONS = ("standard", "second_moment", "as_printed")
PARTS = ("spread", "mean", "all")


def snr(gradients: Tensor, definition: str = "standard") -> Tensor:
    """Signal-to-noise ratio of each element over the first dimension; NaN where nothing varies.

    Args:
        gradients: (window, ...), at least two.
        definition: "standard" E[g]²/Var[g]; "second_moment" E[g²]/Var[g], which is about one more;
            "as_printed" E[g²]/Var[g²], for comparison with a table that gives it: it changes when
            the loss is multiplied by a number. Var is unbiased.

    Examples:
        >>> snr(torch.tensor([[1.0, 2.0], [3.0, 2.0]]))
        tensor([2., nan], dtype=torch.float64)
    """
    _check_definition("snr", definition)
    if gradients.dim() < 1 or len(gradients) < 2:
        raise ValueError(
            f"snr: a variance needs at least two gradients along the first dimension, got the shape "
            f"{tuple(gradients.shape)}"
        )
    moments: list[Tensor] = []
    for count, gradient in enumerate(gradients, 1):
        moments = _updated(moments, gradient, count, definition)
    return _ratio(moments, len(gradients), definition)


def _check_definition(task: str, definition: str) -> None:
    if definition not in DEFINITIONS:
        known = ", ".join(map(repr, DEFINITIONS))
        raise ValueError(f"{task}: definition must be one of {known}, got {definition!r}")


def _updated(moments: list[Tensor], gradient: Tensor, count: int, definition: str) -> list[Tensor]:
    """Mean and sum of squared deviations after gradient number `count`, by Welford's formulas.

    Equal values leave exactly 0 as the second, which is how constant gradients are recognised.
    """
    value = gradient.detach().to(torch.float64, copy=True)
    value = value.square() if definition == "as_printed" else value
    if not moments:
        return [value, torch.zeros_like(value)]
    mean, squares = (moment.to(value.device) for moment in moments)
    difference = value - mean
    mean = mean + difference / count
    return [mean, squares + difference * (value - mean)]


def _ratio(moments: list[Tensor], count: int, definition: str) -> Tensor:
    mean, squares = moments
    variance = squares / (count - 1)
    signal = {
        "standard": mean.square(),
        "second_moment": mean.square() + squares / count,
        "as_printed": mean,
    }[definition]
    return torch.where(variance > 0, signal / variance, torch.nan)


class GradientSNR(Callback):
    """Records the signal-to-noise ratio of gradients of posterior parameters at some steps.

    At "s steps" it has seen the gradients of the last `window` of them, takes the ratio of each element
    of a parameter over the window, and writes down mean and median over the elements whose
    gradient varied. Steps outside of every window cost nothing; inside, two double-precision
    numbers per element are kept. In several processes gradients are the averaged ones.

    As a callback of `kasuri.fit` it reads gradients before they are clipped. In a loop of
    your own call `record(net, step)` after `loss.backward()`, with step = 0, 1, 2, ...

    Args:
        steps: numbers of steps done, at least `window` apart.
        window: number of gradients per reading.
        definition: as for `snr`.
        of: "spread" for all parameters but the means, "mean" for these, "all" for both.

    Examples:
        >>> import kasuri
        >>> x = torch.randn(64, 3)
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(rank=1), bias=False)
        >>> recorder = GradientSNR(steps=[6], window=4)
        >>> elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=64)
        >>> _ = kasuri.fit(elbo, (x, (x[:, 0] > 0).long()), epochs=6, seed=0, callbacks=[recorder])
        >>> [(row["step"], row["parameter"], row["elements"]) for row in recorder.rows]
        [(6, 'log_rows', 2), (6, 'log_columns', 3)]
    """

    def __init__(
        self,
        steps: Iterable[int],
        window: int = 10,
        definition: str = "standard",
        of: str = "spread",
    ) -> None:
        _check_definition("GradientSNR", definition)
        if of not in PARTS:
            raise ValueError(f"GradientSNR: of must be one of {PARTS}, got {of!r}")
        if not is_whole(window, 2):
            raise ValueError(
                f"GradientSNR: a variance needs at least two gradients, got window={window!r}"
            )
        self.steps = sorted(set(steps))
        if not self.steps or any(b - a < window for a, b in pairwise([0, *self.steps])):
            raise ValueError(
                f"GradientSNR: steps must be at least window={window} apart and not before it, got "
                f"{self.steps}"
            )
        self.window, self.definition, self.of = window, definition, of
        self.rows: list[dict[str, Any]] = []
        self._seen = 0  # gradients of the present window
        self._moments: dict[str, dict[str, list[Tensor]]] = {}  # by posterior and parameter

    def on_step(self, objective: Objective, step: int, terms: Terms) -> None:
        """Take in the gradients of a step."""
        self.record(objective, step)

    def record(self, model: nn.Module, step: int) -> None:
        """Take in the gradients that are there; `step` is the number of steps done before.

        Args:
            model: the converted network, or an objective that has it.
            step: 0 for the first.
        """
        end = next((end for end in self.steps if end - self.window <= step < end), None)
        if end is None:
            return
        start = end - self.window
        if step == start:
            self._seen, self._moments = 0, {}
        if self._seen != step - start:
            raise ValueError(
                f"GradientSNR at {end} steps needs the gradients of every step from {start} to "
                f"{end - 1}, and was given step {step} after {self._seen} of them; record every step "
                "once, counting from 0, or ask for later steps"
            )
        self._seen += 1
        net = model.net if isinstance(model, Objective) else model
        for layer, parameter, gradient in _gradients(net, self.of):
            moments = self._moments.setdefault(layer, {})
            before = moments.get(parameter, [])
            moments[parameter] = _updated(before, gradient, self._seen, self.definition)
        if self._seen == self.window:
            self._close(end)

    def _close(self, end: int) -> None:
        for layer, named in self._moments.items():
            for parameter, moments in named.items():
                ratio = _ratio(moments, self.window, self.definition)
                self.rows.append(
                    {"step": end, "layer": layer, "parameter": parameter}
                    | _summary(ratio[ratio.isfinite()])
                    | {"definition": self.definition}
                )
        self._seen, self._moments = 0, {}

    def state_dict(self) -> dict[str, Any]:
        """The rows, and the window that is not over."""
        state = {"rows": self.rows, "seen": self._seen, "moments": self._moments}
        return copy.deepcopy(state | {"settings": self._settings()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the middle of a window."""
        if state["settings"] != self._settings():
            raise ValueError(
                f"GradientSNR: the interrupted run recorded {state['settings']}, this one is to "
                f"record {self._settings()}; use the same settings"
            )
        state = copy.deepcopy(state)
        self.rows = state["rows"]
        if "windows" in state:  # of version 0.2, which also kept the count of each parameter
            for seen, named in state["windows"].values():
                self._seen = seen
                self._moments = {
                    layer: {name: moments[:2] for name, moments in parameters.items()}
                    for layer, parameters in named.items()
                }
        else:
            self._seen, self._moments = state["seen"], state["moments"]

    def _settings(self) -> dict[str, Any]:
        return {
            "steps": list(self.steps),
            "window": self.window,
            "definition": self.definition,
            "of": self.of,
        }


def _gradients(net: nn.Module, of: str) -> Iterator[tuple[str, str, Tensor]]:
    """(posterior, parameter, gradient); a trained parameter without one has gradient 0."""
    posteriors = require_posteriors(net)
    if all(p.grad is None for q in posteriors.values() for p in q.parameters()):
        raise ValueError(
            "GradientSNR: the posteriors have no gradients; call record after loss.backward() and "
            "before optimizer.zero_grad()"
        )
    for layer, q in posteriors.items():
        for name, p in q.named_parameters():
            if p.requires_grad and of in ("all", "mean" if name == "loc" else "spread"):
                yield layer, name, torch.zeros_like(p) if p.grad is None else p.grad


def _summary(values: Tensor) -> dict[str, Any]:
    """Mean, median (of the middle two for even numbers) and how many; None of nothing."""
    count = len(values)
    if not count:
        return {"mean": None, "median": None, "elements": 0}
    median = values.sort().values[[(count - 1) // 2, count // 2]].mean()
    return {"mean": float(values.mean()), "median": float(median), "elements": count}
