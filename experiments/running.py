"""Running experiments: skip what is there, resume what was interrupted, write what came out."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments import results
from experiments.spec import Experiment, Where
from experiments.workers import prepare, run_tasks
from kasuri.training import Processes

_SHOWN = ("accuracy", "rmse", "nll", "ece", "neg_elbo", "log_likelihood", "elbo")
_ALONE = Processes()


def announce(text: str) -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


@dataclass(frozen=True)
class Plan:
    """Where results and checkpoints go, and how to treat what is there.

    Args:
        results: folder of the result files.
        runs: folder of checkpoints and trained networks.
        smoke: the experiments are smoke runs: keep their results apart from real ones.
        force: run again what has a result, from the beginning.
        show: progress bars; None if the program runs in a terminal.
    """

    results: Path = Path("results")
    runs: Path = Path("runs")
    smoke: bool = False
    force: bool = False
    show: bool | None = None


def changed(experiment: Experiment, overrides: dict[str, Any]) -> Experiment:
    """The experiment with other settings, which its variant name lists."""
    overrides = {k: v for k, v in overrides.items() if getattr(experiment, k) != v}
    if not overrides:
        return experiment
    suffix = ",".join(f"{name}={value}" for name, value in overrides.items()).replace("/", "-")
    return replace(experiment, variant=f"{experiment.variant},{suffix}", **overrides)


def run_all(
    experiments: Sequence[Experiment],
    seeds: Sequence[int],
    plan: Plan,
    group: Processes = _ALONE,
    say: Callable[[str], None] = announce,
    workers: int = 1,
    threads: int | None = None,
) -> list[Path]:
    """Run every experiment with every seed; the result files, also those that were there before.

    Args:
        experiments: to run.
        seeds: of each.
        plan: where results go, and what happens to those that are there.
        group: of processes that share one run, started by torchrun.
        say: where to tell what is done.
        workers: processes that do runs of their own at the same time.
        threads: of torch, per worker.
    """
    runs = [(experiment, seed) for seed in seeds for experiment in experiments]
    if workers < 1 or (workers > 1 and group.world > 1):
        raise ValueError(
            f"workers={workers} must be at least 1, and 1 under torchrun, whose processes share a run"
        )
    if workers == 1:
        prepare(threads)
        return [run_one(experiment, seed, plan, group, say) for experiment, seed in runs]
    if threads is None:
        threads = max(1, torch.get_num_threads() // workers)
    quiet = replace(plan, show=False)
    tasks = [
        (_title(experiment, seed), partial(run_one, experiment, seed, quiet))
        for experiment, seed in runs
    ]
    return run_tasks(tasks, min(workers, len(runs)), threads, say)


def run_one(
    experiment: Experiment,
    seed: int,
    plan: Plan,
    group: Processes = _ALONE,
    say: Callable[[str], None] = announce,
) -> Path:
    """One experiment with one seed."""
    root, runs = plan.results, plan.runs
    if plan.smoke:
        root, runs = root / "smoke", runs / "smoke"
    path, title = results.place(root, experiment, seed), _title(experiment, seed)
    if group.from_first(lambda: path.exists() and not plan.force):
        settings = results.settings_of(path)
        same = settings is not None and experiment.made(settings)
        note = "" if same else "; its settings differ from today's, --force runs it again"
        if group.is_first:
            say(f"{title}: {path} is there{note}")
        return path
    folder = runs / experiment.name / experiment.variant / str(seed)
    if plan.force and group.is_first:
        shutil.rmtree(folder, ignore_errors=True)
    group.from_first(lambda: None)  # nobody looks for a checkpoint before it is gone
    started = datetime.now(UTC)
    outcome = experiment.run(seed, Where(folder=folder, show=plan.show))
    if group.is_first:
        results.write(path, experiment, seed, plan.smoke, started, outcome)
        scores = outcome.metrics.items()
        line = ", ".join(f"{name} {value:.4g}" for name, value in scores if name in _SHOWN)
        say(f"{title}: {line} in {outcome.seconds['total']:.0f} s -> {path}")
    return path


def _title(experiment: Experiment, seed: int) -> str:
    return f"{experiment.name} {experiment.variant} seed {seed}"
