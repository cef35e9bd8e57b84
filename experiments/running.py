"""Running experiments: skip what is there, resume what was interrupted, write what came out."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from tyro.conf import Fixed

from experiments import results
from experiments.report.reading import read
from experiments.spec import Experiment, Where
from experiments.workers import prepare, run_tasks
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
    test: Fixed[bool] = True  # also score the test data; a sweep leaves them alone

    def places(self, experiment: Experiment, seed: int) -> tuple[Path, Path]:
        """The result file of a run, and the folder of its checkpoint."""
        place = Path("smoke" if self.smoke else "", experiment.name, experiment.variant)
        return self.results / place / f"{seed}.json", self.runs / place / str(seed)


def run_all(
    experiments: Sequence[Experiment], seeds: Sequence[int], plan: Plan, group: Processes = _ALONE
) -> list[Path]:
    """Run every experiment with every seed; the result files, also those that were there before.

    `group` are the processes that share one run, started by torchrun. Otherwise a run whose loss is no number
    does not stop the others, nor does any that fails beside others (workers > 1).

    Raises:
        RunsFailed: when all runs are over, if some failed.
    """
    runs = [(experiment, seed) for seed in seeds for experiment in experiments]
    if group.world > 1:
        if plan.workers > 1:
            raise ValueError(
                f"workers={plan.workers} must be 1 under torchrun: its processes share a run"
            )
        prepare(plan.threads)
        return [run_one(*run, plan, group) for run in runs]
    if plan.workers > 1:
        plan = replace(plan, show=False)
    tasks = {_title(*run): partial(run_one, *run, plan) for run in runs}
    run_tasks(tasks, plan.workers, plan.threads)
    return [plan.places(*run)[0] for run in runs]


def run_one(experiment: Experiment, seed: int, plan: Plan, group: Processes = _ALONE) -> Path:
    """One experiment with one seed."""
    path, folder = plan.places(experiment, seed)
    title = _title(experiment, seed)
    if group.from_first(lambda: path.exists() and not plan.force):
        found, _ = read(path)
        same = found and experiment.made(found[0].settings)
        note = "" if same else "; its settings differ from today's, --force runs it again"
        if group.is_first:
            print(f"{title}: {path} is there{note}", flush=True)
        return path
    if plan.force and group.is_first:
        shutil.rmtree(folder, ignore_errors=True)
    group.from_first(lambda: None)  # nobody looks for a checkpoint before it is gone
    started = datetime.now(UTC)
    outcome = experiment.run(seed, Where(folder, plan.show, plan.test))
    if group.is_first:
        results.write(path, experiment, seed, plan.smoke, started, outcome)
        scores = (outcome.metrics or outcome.validation).items()
        line = ", ".join(f"{name} {value:.4g}" for name, value in scores if name in _SHOWN)
        took = (datetime.now(UTC) - started).total_seconds()
        print(f"{title}: {line} in {took:.0f} s -> {path}", flush=True)
    return path


def _title(experiment: Experiment, seed: int) -> str:
    return f"{experiment.name} {experiment.variant} seed {seed}"
