"""Model selection on validation data with Optuna: resumable, by one worker or many."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import optuna

from experiments.results import origin
from experiments.spec import Experiment, Where
from experiments.workers import prepare, run_tasks
from kasuri.checks import near_misses
from kasuri.storage import write_atomically

HIGHER_IS_BETTER = ("accuracy", "ood_auroc")
COMPLETE = (optuna.trial.TrialState.COMPLETE,)


def sweep(
    experiment: Experiment,
    *,
    trials: int | None = None,
    workers: int = 1,
    storage: str | None = None,
    metric: str = "nll",
    seed: int = 0,
    smoke: bool = False,
    results: Path = Path("results"),
    threads: int | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Try the values of the experiment's space; the best settings, also written beside results."""
    if not experiment.space:
        raise ValueError(f"{experiment.name} {experiment.variant} has nothing to choose")
    if workers < 1:
        raise ValueError(f"workers={workers} must be at least 1")
    folder = results / ("smoke" if smoke else "") / experiment.name / experiment.variant
    folder.mkdir(parents=True, exist_ok=True)
    url = storage or f"sqlite:///{folder / 'sweep.db'}"
    name = f"{experiment.name} {experiment.variant}, {metric}, seed {seed}{', smoke' * smoke}"
    study = _study(name, url, experiment, metric, seed)
    wanted = trials if trials is not None else prod(len(v) for v in experiment.space.values())
    work = partial(_work, name, url, experiment, wanted, metric, seed)
    if workers == 1:
        prepare(threads)
        work()
    else:
        run_tasks([(f"worker {i}", work) for i in range(workers)], workers, threads, say)
    summary: dict[str, Any] = {
        "sweep": name,
        "metric": f"validation {metric}",
        "seed": seed,
        "smoke": smoke,
        "settings": experiment.settings(),
        **origin(),
        "best": {"settings": study.best_params, "value": study.best_value},
        "trials": [
            {
                "settings": trial.params,
                "value": trial.value,
                "state": trial.state.name,
                "seconds": trial.duration.total_seconds() if trial.duration is not None else None,
            }
            for trial in study.get_trials(deepcopy=False)
            if trial.state.is_finished()  # not what a killed worker left behind
        ],
    }
    write_atomically(folder / "sweep.json", (json.dumps(summary, indent=1) + "\n").encode())
    best = ", ".join(f"{key} {value}" for key, value in study.best_params.items())
    say(f"{name}: {len(summary['trials'])} trials, best validation {metric} {study.best_value:.4g}")
    say(f"  with {best} -> {folder / 'sweep.json'}")
    return summary


def _study(name: str, url: str, experiment: Experiment, metric: str, seed: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        study_name=name,
        storage=url,
        sampler=optuna.samplers.GridSampler(dict(experiment.space), seed=seed),
        direction="maximize" if metric.startswith(HIGHER_IS_BETTER) else "minimize",
        load_if_exists=True,
    )


def _work(name: str, url: str, experiment: Experiment, wanted: int, metric: str, seed: int) -> None:
    """Run trials until there are as many as wanted, whoever ran them."""
    study = _study(name, url, experiment, metric, seed)

    def score(trial: optuna.Trial) -> float:
        settings = {
            key: trial.suggest_categorical(key, list(values))
            for key, values in experiment.space.items()
        }
        found = replace(experiment, **settings).run(seed, Where(show=False, test=False))
        if metric not in found.validation:
            raise ValueError(f"no metric {metric!r}: {near_misses(metric, found.validation)}")
        return found.validation[metric]

    if len(study.get_trials(deepcopy=False, states=COMPLETE)) < wanted:
        # a trial whose loss is not a number fails alone: those settings are simply no good
        enough = optuna.study.MaxTrialsCallback(wanted, states=COMPLETE)
        study.optimize(score, callbacks=[enough], catch=(ArithmeticError,))
