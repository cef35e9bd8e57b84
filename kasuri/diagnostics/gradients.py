"""The signal-to-noise ratio of gradients, recorded while a network trains."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.checks import is_whole
from kasuri.diagnostics.ratios import Moments, definition_of, ratio_of, value_of
from kasuri.network.random import require_posteriors
from kasuri.objectives.elbo import Objective, Terms
from kasuri.training.callbacks import Callback

_PARTS: dict[str, Callable[[str], bool]] = {
    "spread": lambda name: name != "loc",
    "mean": lambda name: name == "loc",
    "all": lambda name: True,
}


@dataclass
class _Window:
    """The moments of one window so far: layer → parameter → moments."""

    seen: int
    moments: dict[str, dict[str, Moments]]


class GradientSNR(Callback):
    """Records the signal-to-noise ratio of gradients of posterior parameters at some steps.

    At "s steps" it has seen the gradients of the last `window` of them, takes the ratio of each element
    of a parameter over the window, and writes down mean and median over the elements whose
    gradient varied. Steps outside of every window cost nothing; inside, two double-precision
    numbers per element and window are kept. In several processes gradients are the averaged ones.

    As a callback of `kasuri.fit` it reads gradients before they are clipped. In a loop of
    your own call `record(net, step)` after `loss.backward()`, with step = 0, 1, 2, ...

    Args:
        steps: numbers of steps done, each at least `window`.
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
        if not is_whole(window, 2):
            raise ValueError(
                f"GradientSNR(window={window!r}): a variance needs at least two gradients"
            )
        self.steps = sorted(set(steps))
        self.window, self.definition, self.of = window, definition, of
        self._kind = definition_of("GradientSNR", definition)
        if of not in _PARTS:
            raise ValueError(f"GradientSNR(of={of!r}): write one of {', '.join(map(repr, _PARTS))}")
        if not self.steps:
            raise ValueError("GradientSNR(steps=[]) would record nothing; write e.g. steps=[100]")
        if self.steps[0] < window:
            raise ValueError(
                f"GradientSNR(steps=[{self.steps[0]}, ...], window={window}): after "
                f"{self.steps[0]} steps there are not {window} gradients; begin at {window} or later"
            )
        self.rows: list[dict[str, Any]] = []
        self._open: dict[int, _Window] = {}

    def on_step(self, objective: Objective, step: int, terms: Terms) -> None:
        """Take in the gradients of a step."""
        self.record(objective, step)

    def record(self, model: nn.Module, step: int) -> None:
        """Take in the gradients that are there; `step` is the number of steps done before.

        Args:
            model: the converted network, or an objective that has it.
            step: 0 for the first.
        """
        windows = self._windows(step)
        if not windows:
            return
        net = model.net if isinstance(model, Objective) else model
        gradients = {
            layer: {name: value_of(g, self._kind) for name, g in named}
            for layer, named in _gradients(net, self.of)
        }
        for end in windows:
            self._add(end, gradients)
            if end == step + 1:
                self._close(end)

    def _windows(self, step: int) -> list[int]:
        """Ends of the windows that a step lies in; refuse gaps."""
        first, last = bisect_right(self.steps, step), bisect_right(self.steps, step + self.window)
        for end in self.steps[first:last]:
            start = end - self.window
            if step == start:
                self._open[end] = _Window(0, {})
            seen = self._open[end].seen if end in self._open else 0
            if seen != step - start:
                raise ValueError(
                    f"GradientSNR at {end} steps needs the gradients of every step from {start} to "
                    f"{end - 1}, and was given step {step} after {seen} of them; record every step "
                    "once, counting from 0, or ask for later steps"
                )
        return self.steps[first:last]

    def _add(self, end: int, gradients: dict[str, dict[str, Tensor]]) -> None:
        window = self._open[end]
        window.seen += 1
        for layer, named in gradients.items():
            held = window.moments.setdefault(layer, {})
            for name, value in named.items():
                if name in held:
                    held[name].add(value)
                else:
                    held[name] = Moments.of(value)

    def _close(self, end: int) -> None:
        for layer, named in self._open.pop(end).moments.items():
            for name, moments in named.items():
                ratio = ratio_of(moments, self._kind)
                self.rows.append(
                    {"step": end, "layer": layer, "parameter": name}
                    | _summary(ratio[ratio.isfinite()])
                    | {"definition": self.definition}
                )

    def state_dict(self) -> dict[str, Any]:
        """The rows, and windows that are not over."""
        return {
            "settings": self._settings(),
            "rows": [dict(row) for row in self.rows],
            "windows": {
                end: [window.seen, {la: _saved(named) for la, named in window.moments.items()}]
                for end, window in self._open.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the middle of a window."""
        if state["settings"] != self._settings():
            raise ValueError(
                f"GradientSNR: the interrupted run recorded {state['settings']}, this one is to "
                f"record {self._settings()}; use the same settings"
            )
        self.rows = [dict(row) for row in state["rows"]]
        self._open = {
            int(end): _Window(seen, {layer: _loaded(named) for layer, named in moments.items()})
            for end, (seen, moments) in state["windows"].items()
        }

    def _settings(self) -> dict[str, Any]:
        return {
            "steps": list(self.steps),
            "window": self.window,
            "definition": self.definition,
            "of": self.of,
        }


def _gradients(net: nn.Module, of: str) -> Iterator[tuple[str, list[tuple[str, Tensor]]]]:
    """(posterior, [(parameter, gradient), ...]); a trained parameter without one has gradient 0."""
    posteriors = require_posteriors(net)
    if all(p.grad is None for q in posteriors.values() for p in q.parameters()):
        raise ValueError(
            "GradientSNR: the posteriors have no gradients; call record after loss.backward() and "
            "before optimizer.zero_grad()"
        )
    for layer, q in posteriors.items():
        yield (
            layer,
            [
                (name, torch.zeros_like(p) if p.grad is None else p.grad)
                for name, p in q.named_parameters()
                if p.requires_grad and _PARTS[of](name)
            ],
        )


def _summary(values: Tensor) -> dict[str, Any]:
    """Mean, median (of the middle two for even numbers) and how many; None of nothing."""
    count = values.numel()
    if not count:
        return {"mean": None, "median": None, "elements": 0}
    ordered = values.flatten().sort().values
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return {"mean": float(values.mean()), "median": float(median), "elements": count}


def _saved(named: dict[str, Moments]) -> dict[str, Any]:
    return {name: [m.mean.clone(), m.squares.clone(), m.count] for name, m in named.items()}


def _loaded(named: dict[str, Any]) -> dict[str, Moments]:
    return {name: Moments(mean, squares, count) for name, (mean, squares, count) in named.items()}
