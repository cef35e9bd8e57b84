"""Model selection on validation data: every combination of the values in an experiment's space."""

import math
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tyro.conf import Fixed

from experiments.report import Result, compare, print_table, read
from experiments.report.score_tables import column
from experiments.running import Plan, run_all
from experiments.spec import Experiment
from experiments.workers import RunsFailed
from kasuri.checks import near_misses


@dataclass(frozen=True, kw_only=True)
class Sweep(Plan):
    """How to choose settings on validation data."""

    variant: str  # the row of the experiment's table whose settings are chosen
    results: Path = Path("sweeps")  # folder of the result files
    metric: str = "nll"  # on the validation data
    seed: int = 0  # of every trial
    trials: int | None = None  # only so many combinations, the first; default: all
    test: Fixed[bool] = False

    @property
    def variants(self) -> tuple[str, ...]:
        return (self.variant,)


def run_sweep(experiment: Experiment, plan: Sweep) -> Result:
    """Run the experiment with all values of its space; the result that is the best on validation data.

    Every combination is a run with a result file, so that it is not run again: the same command goes on where
    it stopped, and another metric costs nothing.
    """
    title = f"{experiment.name} {experiment.variant}"
    if not experiment.space:
        raise ValueError(f"{title} has nothing to choose")
    combinations = list(product(*experiment.space.values()))[: plan.trials]
    choices = [dict(zip(experiment.space, values, strict=True)) for values in combinations]
    trials = {row.variant: row for row in (experiment.changed(**choice) for choice in choices)}
    with suppress(RunsFailed):  # settings at which training fails are no good
        run_all(list(trials.values()), [plan.seed], plan)
    results, _ = read([plan.places(row, plan.seed)[0] for row in trials.values()])
    if not results:
        raise ValueError(f"{title}: every trial failed")
    known = results[0].validation
    if plan.metric not in known:
        raise ValueError(f"no metric {plan.metric!r}: {near_misses(plan.metric, known)}")
    print_table(compare(results, validation=True))

    def loss(result: Result) -> float:
        value = result.validation.get(plan.metric, math.nan)
        return column(plan.metric).loss(value) if math.isfinite(value) else math.inf

    best = min(results, key=loss)
    chosen = ", ".join(f"{name} {getattr(trials[best.variant], name)}" for name in experiment.space)
    value = best.validation[plan.metric]
    print(f"{title}: best validation {plan.metric} {value:.4g} with {chosen}", flush=True)
    return best
