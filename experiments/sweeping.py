"""Model selection on validation data: every combination of the values in an experiment's space."""

import json
import math
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from experiments.results import origin
from experiments.running import Plan
from experiments.spec import Experiment, Where
from experiments.workers import announce, run_tasks
from kasuri.checks import near_misses
from kasuri.storage import write_atomically

HIGHER_IS_BETTER = ("accuracy", "ood_auroc")


@dataclass(frozen=True, kw_only=True)
class Sweep(Plan):
    """How to choose settings on validation data."""

    variant: str  # the row of the experiment's table whose settings are chosen
    metric: str = "nll"  # on the validation data
    seed: int = 0  # of every trial
    trials: int | None = None  # only so many combinations, the first; default: all


def run_sweep(experiment: Experiment, plan: Sweep) -> dict[str, Any]:
    """Try the values of the experiment's space; the best settings, also written beside results.

    A trial is a file in the folder `sweep`, and is not run again: the same command goes on where it stopped,
    and another metric costs nothing.
    """
    title = f"{experiment.name} {experiment.variant}"
    if not experiment.space:
        raise ValueError(f"{title} has nothing to choose")
    place = Path("smoke" if plan.smoke else "", experiment.name, experiment.variant)
    tasks = []
    for values in list(product(*experiment.space.values()))[: plan.trials]:
        settings = dict(zip(experiment.space, values, strict=True))
        name = ",".join(f"{key}={value}" for key, value in settings.items()).replace("/", "-")
        own = place / "sweep" / f"{name},seed={plan.seed}"
        tasks.append((name, partial(_trial, experiment, settings, plan, own)))
    trials = run_tasks(tasks, plan.workers, plan.threads)
    known: dict[str, float] = next(
        (trial["validation"] for trial in trials if trial["validation"]), {}
    )
    if plan.metric not in known:
        raise ValueError(f"no metric {plan.metric!r}: {near_misses(plan.metric, known)}")
    sign = -1 if plan.metric.startswith(HIGHER_IS_BETTER) else 1
    shown = [
        {
            "settings": trial["settings"],
            "value": trial["validation"].get(plan.metric),
            "seconds": trial["seconds"],
        }
        for trial in trials
    ]
    best = min(shown, key=lambda t: math.inf if t["value"] is None else sign * t["value"])
    summary: dict[str, Any] = {
        "sweep": f"{title}, {plan.metric}, seed {plan.seed}",
        "metric": f"validation {plan.metric}",
        "seed": plan.seed,
        "smoke": plan.smoke,
        "settings": experiment.settings(),
        **origin(),
        "best": {key: best[key] for key in ("settings", "value")},
        "trials": shown,
    }
    path = plan.results / place / "sweep.json"
    write_atomically(path, (json.dumps(summary, indent=1) + "\n").encode())
    chosen = ", ".join(f"{key} {value}" for key, value in best["settings"].items())
    announce(f"{title}: best validation {plan.metric} {best['value']:.4g} with {chosen}")
    announce(f"  of {len(trials)} trials -> {path}")
    return summary


def _trial(experiment: Experiment, settings: dict[str, Any], plan: Sweep, place: Path) -> Any:
    """Settings, validation scores and seconds of one combination; test data are left alone."""
    path = plan.results / f"{place}.json"
    if path.exists() and not plan.force:
        return json.loads(path.read_text())
    began, where = time.monotonic(), Where(plan.runs / place, show=plan.show, test=False)
    try:
        scores = replace(experiment, **settings).run(plan.seed, where).validation
    except ArithmeticError:  # a loss that is no number: these settings are no good
        scores = {}
    trial = {"settings": settings, "validation": scores, "seconds": time.monotonic() - began}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(trial) + "\n").encode())
    return trial
