"""Running experiments: skip what is there, resume what was interrupted, write what came out."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.experiments import results
from weft.experiments.spec import Experiment, Where
from weft.training.distributed import Processes


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
) -> list[Path]:
    """Run every experiment with every seed; the result files, also those that were there before."""
    paths = []
    for seed in seeds:
        for experiment in experiments:
            paths.append(run_one(experiment, seed, plan, group, say))
    return paths


def run_one(
    experiment: Experiment, seed: int, plan: Plan, group: Processes, say: Callable[[str], None]
) -> Path:
    """One experiment with one seed."""
    root, runs = plan.results, plan.runs
    if plan.smoke:
        root, runs = root / "smoke", runs / "smoke"
    path, title = (
        results.place(root, experiment, seed),
        f"{experiment.name} {experiment.variant} seed {seed}",
    )
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
