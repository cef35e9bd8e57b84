"""Model selection on validation data with Optuna: resumable, by one worker or many."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Sweep:
    """How to choose settings on validation data."""

    trials: int | None = None  # runs in all, those of earlier calls included; default: the grid
    workers: int = 1  # processes that run trials at the same time on this machine
    # where trials are kept, any URL that SQLAlchemy knows, which workers on several machines share;
    # a SQLite file in the folder of results by default
    storage: str | None = None
    metric: str = "nll"  # on the validation data
    seed: int = 0  # of every trial
    smoke: bool = False  # trials of seconds
    results: Path = Path("results")  # folder of the SQLite file and the summary
    threads: int | None = None  # of torch, per worker


def run_sweep(
    experiment: Experiment, plan: Sweep, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Try the values of the experiment's space; the best settings, also written beside results."""
    if not experiment.space:
        raise ValueError(f"{experiment.name} {experiment.variant} has nothing to choose")
    if plan.workers < 1:
        raise ValueError(f"workers={plan.workers} must be at least 1")
    folder = plan.results / ("smoke" if plan.smoke else "") / experiment.name / experiment.variant
    folder.mkdir(parents=True, exist_ok=True)
    url = plan.storage or f"sqlite:///{folder / 'sweep.db'}"
    name = f"{experiment.name} {experiment.variant}, {plan.metric}, seed {plan.seed}"
    name += ", smoke" * plan.smoke
    study = _study(name, url, experiment, plan)
    work = partial(_work, name, url, experiment, plan)
    if plan.workers == 1:
        prepare(plan.threads)
        work()
    else:
        tasks = [(f"worker {i}", work) for i in range(plan.workers)]
        run_tasks(tasks, plan.workers, plan.threads, say)
    summary: dict[str, Any] = {
        "sweep": name,
        "metric": f"validation {plan.metric}",
        "seed": plan.seed,
        "smoke": plan.smoke,
        "settings": experiment.settings(),
        **origin(),
        "best": {"settings": study.best_params, "value": study.best_value},
        "trials": [
            {
                "settings": trial.params,
                "value": trial.value,
                "state": trial.state.name,
                "seconds": trial.duration and trial.duration.total_seconds(),
            }
            for trial in study.get_trials(deepcopy=False)
            if trial.state.is_finished()  # not what a killed worker left behind
        ],
    }
    write_atomically(folder / "sweep.json", (json.dumps(summary, indent=1) + "\n").encode())
    best = ", ".join(f"{key} {value}" for key, value in study.best_params.items())
    say(f"{name}: best validation {plan.metric} {study.best_value:.4g} with {best}")
    say(f"  of {len(summary['trials'])} trials -> {folder / 'sweep.json'}")
    return summary


def _study(name: str, url: str, experiment: Experiment, plan: Sweep) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        study_name=name,
        storage=url,
        sampler=optuna.samplers.GridSampler(dict(experiment.space), seed=plan.seed),
        direction="maximize" if plan.metric.startswith(HIGHER_IS_BETTER) else "minimize",
        load_if_exists=True,
    )


def _work(name: str, url: str, experiment: Experiment, plan: Sweep) -> None:
    """Run trials until there are as many as wanted, whoever ran them."""
    study = _study(name, url, experiment, plan)
    wanted = prod(map(len, experiment.space.values())) if plan.trials is None else plan.trials

    def score(trial: optuna.Trial) -> float:
        settings = {
            key: trial.suggest_categorical(key, list(values))
            for key, values in experiment.space.items()
        }
        where = Where(show=False, test=False)
        scores = replace(experiment, **settings).run(plan.seed, where).validation
        if plan.metric not in scores:
            raise ValueError(f"no metric {plan.metric!r}: {near_misses(plan.metric, scores)}")
        return scores[plan.metric]

    if len(study.get_trials(deepcopy=False, states=COMPLETE)) < wanted:
        # a trial whose loss is not a number fails alone: those settings are simply no good
        enough = optuna.study.MaxTrialsCallback(wanted, states=COMPLETE)
        study.optimize(score, callbacks=[enough], catch=(ArithmeticError,))
