"""Running experiments: skip what is there, resume what was interrupted, write what came out."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from experiments import results
from experiments.spec import Experiment, Where
from experiments.workers import announce, run_tasks
from kasuri.training import Processes

_SHOWN = ("accuracy", "rmse", "nll", "ece", "neg_elbo", "log_likelihood", "elbo")
_ALONE = Processes()


@dataclass(frozen=True)
class Plan:
    """How to run."""

    results: Path = Path("results")  # folder of the result files
    runs: Path = Path("runs")  # folder of checkpoints and trained networks
    smoke: bool = False  # runs of seconds, kept apart from real ones
    force: bool = False  # run again what has a result, from the beginning
    show: bool | None = None  # progress bars; by default in a terminal, with a single worker
    threads: int | None = None  # of torch, per worker; as many as torch thinks right by default
    workers: int = 1  # processes that do runs at the same time on this machine


def run_all(
    experiments: Sequence[Experiment], seeds: Sequence[int], plan: Plan, group: Processes = _ALONE
) -> list[Path]:
    """Run every experiment with every seed; the result files, also those that were there before.

    `group` are the processes that share one run, started by torchrun.
    """
    if plan.workers > 1:
        if group.world > 1:
            raise ValueError(
                f"workers={plan.workers} must be 1 under torchrun: its processes share a run"
            )
        plan = replace(plan, show=False)
    tasks = [
        (_title(experiment, seed), partial(run_one, experiment, seed, plan, group))
        for seed in seeds
        for experiment in experiments
    ]
    return run_tasks(tasks, plan.workers, plan.threads)


def run_one(experiment: Experiment, seed: int, plan: Plan, group: Processes = _ALONE) -> Path:
    """One experiment with one seed."""
    place = Path("smoke" if plan.smoke else "", experiment.name, experiment.variant)
    path, folder = plan.results / place / f"{seed}.json", plan.runs / place / str(seed)
    title = _title(experiment, seed)
    if group.from_first(lambda: path.exists() and not plan.force):
        settings = results.settings_of(path)
        same = settings is not None and experiment.made(settings)
        note = "" if same else "; its settings differ from today's, --force runs it again"
        if group.is_first:
            announce(f"{title}: {path} is there{note}")
        return path
    if plan.force and group.is_first:
        shutil.rmtree(folder, ignore_errors=True)
    group.from_first(lambda: None)  # nobody looks for a checkpoint before it is gone
    started = datetime.now(UTC)
    outcome = experiment.run(seed, Where(folder=folder, show=plan.show))
    if group.is_first:
        results.write(path, experiment, seed, plan.smoke, started, outcome)
        scores = outcome.metrics.items()
        line = ", ".join(f"{name} {value:.4g}" for name, value in scores if name in _SHOWN)
        took = (datetime.now(UTC) - started).total_seconds()
        announce(f"{title}: {line} in {took:.0f} s -> {path}")
    return path


def _title(experiment: Experiment, seed: int) -> str:
    return f"{experiment.name} {experiment.variant} seed {seed}"
