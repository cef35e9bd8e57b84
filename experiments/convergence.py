"""How fast the ELBO falls, and how noisy its gradients are, step by step."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import kasuri
from experiments.data import Split
from experiments.spec import Outcome, Where
from experiments.supervised import Supervised, trained_numbers
from kasuri.diagnostics import GradientSNR, ScaleDrift
from kasuri.streams import Stream, mix


@dataclass(frozen=True, kw_only=True)
class Convergence(Supervised):
    """Training for a number of steps, watched: −ELBO on validation data, gradient SNR, mean σ."""

    steps: int = 9000  # of training; `epochs` follows from it
    looks: tuple[int, ...] = (1000, 5000, 9000)  # steps at which the gradient SNR is taken
    window: int = 10  # batches before each of them, over which it is taken
    every: int = 250  # steps between two points of the curves
    watched: str = "2.weight"  # layer whose gradients are watched, as a glob of posterior names

    def smoke(self) -> "Convergence":
        """Twelve steps, looked at twice."""
        return replace(self, steps=12, looks=(6, 12), window=3, every=4, limit=200, samples=4)

    def run(self, seed: int, where: Where) -> Outcome:
        data = self.load(self.data, seed)
        per_epoch = -(-len(data.train) // (self.batch_size or len(data.train)))
        # the last look needs the gradients of step `steps` - 1, so whole epochs are enough
        planned = replace(self, epochs=-(-self.steps // per_epoch))
        ratios = GradientSNR(self.looks, window=self.window)
        drift = ScaleDrift(every=self.every)
        curve = ElboCurve(data.valid, self.every, mix(seed, Stream.CURVE))
        start = mix(seed, Stream.START)
        callbacks = [ratios, drift, curve]
        fitted = Supervised.train(planned, data, start, where, callbacks)
        # earlier results have ratios of other definitions beside this one
        rows = [
            row | {"definition": "standard"} for row in ratios.rows if row["layer"] == self.watched
        ]
        elbos = {f"neg_elbo_{step}": curve.at(step) for step in self.looks}
        scores = dict(self.assess([fitted], data, "test", seed)) if where.test else {}
        return Outcome(
            metrics=scores | elbos | pooled_ratios(rows),
            validation=elbos,
            history=fitted.history,
            figures={
                "convergence": curve.points,
                "gradient_snr": rows,
                "drift": drift.curves,
            },
            parameters=trained_numbers(fitted.net),
            seconds=curve.points["seconds"][-1],
        )


def pooled_ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean and median SNR by step; of several parameters of a layer the mean over all elements.

    Examples:
        >>> row = {"step": 9, "mean": 5.0, "median": 1.0, "elements": 2}
        >>> pooled_ratios([row, row | {"mean": 2.0, "elements": 1}])
        {'snr_9': 4.0, 'snr_median_9': 1.0}
    """
    ratios: dict[str, float] = {}
    varied = [row for row in rows if row["elements"]]
    for step in sorted({row["step"] for row in varied}):
        now = [row for row in varied if row["step"] == step]
        count = sum(row["elements"] for row in now)
        for name, key in (("snr", "mean"), ("snr_median", "median")):
            ratios[f"{name}_{step}"] = sum(row[key] * row["elements"] for row in now) / count
    return ratios


class ElboCurve(kasuri.training.Callback):
    """−ELBO on validation data, with the whole KL, every so many steps.

    The seconds are those of training alone, without the looks.
    """

    def __init__(self, valid: Split, every: int, seed: int, draws: int = 4) -> None:
        self.valid, self.every, self.seed, self.draws = valid, every, seed, draws
        self.points: dict[str, list[Any]] = {"step": [], "seconds": [], "neg_elbo": []}
        self._spent, self._since = 0.0, time.monotonic()

    def on_step(self, objective: Any, step: int, terms: Any) -> None:
        """Measure before the update number `step`, so after `step` updates."""
        if step % self.every:
            return
        self._spent += time.monotonic() - self._since
        scores = kasuri.evaluate(objective, self.valid, samples=self.draws, seed=self.seed)
        values = (step, self._spent, scores["neg_elbo"])
        for column, value in zip(self.points.values(), values, strict=True):
            column.append(value)
        self._since = time.monotonic()

    def at(self, step: int) -> float:
        pairs = zip(self.points["step"], self.points["neg_elbo"], strict=True)
        return float([value for at, value in pairs if at <= step][-1])

    def state_dict(self) -> dict[str, Any]:
        return {"points": self.points, "spent": self._spent + time.monotonic() - self._since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.points = {name: list(values) for name, values in state["points"].items()}
        self._spent, self._since = float(state["spent"]), time.monotonic()
