"""Running experiments: skip what is there, resume what was interrupted, write what came out."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments import results
from experiments.memory import prepare
from experiments.side_by_side import side_by_side
from experiments.spec import Experiment, Where
from kasuri.training.distributed import Processes


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
    """The experiment with other settings, under a variant name that tells them."""
    overrides = {k: v for k, v in overrides.items() if getattr(experiment, k) != v}
    if not overrides:
        return experiment
    told = ",".join(f"{name}={value}" for name, value in overrides.items()).replace("/", "-")
    return replace(experiment, variant=f"{experiment.variant},{told}", **overrides)


def run_all(
    experiments: Sequence[Experiment],
    seeds: Sequence[int],
    plan: Plan,
    group: Processes,
    say: Callable[[str], None] = print,
    workers: int = 1,
    threads: int | None = None,
) -> list[Path]:
    """Run every experiment with every seed; the result files, also those that were there before.

    Args:
        experiments: to run.
        seeds: of each.
        plan: where to, and what of what is there.
        group: of processes that share one run, started by torchrun.
        say: where to tell what is done.
        workers: processes that do runs of their own at the same time.
        threads: of torch, per worker.
    """
    runs = [(experiment, seed) for seed in seeds for experiment in experiments]
    if workers == 1:
        prepare(threads)
        return [run_one(*one, plan, group, say) for one in runs]
    if workers < 1 or group.world > 1:
        raise ValueError(
            f"run(workers={workers}): at least one, and under torchrun, whose processes share a run, no more"
        )
    if threads is None:
        threads = max(1, torch.get_num_threads() // workers)
    apart = replace(plan, show=False)
    tasks = [(title_of(*one), partial(_alone, *one, apart)) for one in runs]
    found = side_by_side(tasks, say, lambda one: one[1], min(workers, len(runs)), threads)
    return [path for path, _ in found]


def _alone(experiment: Experiment, seed: int, plan: Plan) -> tuple[Path, str]:
    """One run in a process of its own: the file, and what there is to say."""
    told: list[str] = []
    path = run_one(experiment, seed, plan, Processes(), told.append)
    return path, "\n".join(told)


def title_of(experiment: Experiment, seed: int) -> str:
    """What to call a run."""
    return f"{experiment.name} {experiment.variant} seed {seed}"


def run_one(
    experiment: Experiment, seed: int, plan: Plan, group: Processes, say: Callable[[str], None]
) -> Path:
    """One experiment with one seed."""
    root, runs = plan.results, plan.runs
    if plan.smoke:
        root, runs = root / "smoke", runs / "smoke"
    path, title = results.place(root, experiment, seed), title_of(experiment, seed)
    if group.share(path.exists() and not plan.force):
        settings = results.settings_of(path)
        same = settings is not None and experiment.made(settings)
        note = "" if same else "; its settings differ from today's, --force runs it again"
        if group.is_first:
            say(f"{title}: {path} is there{note}")
        return path
    folder = runs / experiment.name / experiment.variant / str(seed)
    if plan.force and group.is_first:
        shutil.rmtree(folder, ignore_errors=True)
    group.share(None)  # nobody looks for a checkpoint before it is gone
    started = results.now()
    found = experiment.run(seed, Where(folder=folder, show=plan.show))
    if group.is_first:
        results.write(path, experiment, seed, plan.smoke, started, found)
        say(f"{title}: {_line(found.metrics)} in {found.seconds['total']:.0f} s -> {path}")
    return path


def _line(metrics: dict[str, float]) -> str:
    shown = ("accuracy", "rmse", "nll", "ece", "neg_elbo", "log_likelihood", "elbo")
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in shown if name in metrics)
