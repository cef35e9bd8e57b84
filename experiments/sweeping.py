"""Model selection on validation data with Optuna: resumable, by one worker or many."""

import json
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from experiments.memory import prepare
from experiments.results import commit, machine, versions
from experiments.spec import Experiment, Where
from kasuri.checks import near_misses
from kasuri.storage import write_atomically

HIGHER_IS_BETTER = ("accuracy", "ood_auroc")


def sweep(
    experiment: Experiment,
    *,
    trials: int | None,
    workers: int,
    storage: str | None,
    metric: str,
    seed: int,
    smoke: bool,
    results: Path,
    threads: int | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Try the values of the experiment's space; the best settings, also written beside results."""
    if not experiment.space:
        raise ValueError(f"{experiment.name} {experiment.variant} has nothing to choose")
    if workers < 1:
        raise ValueError(f"sweep(workers={workers}): at least one")
    folder = results / ("smoke" if smoke else "") / experiment.name / experiment.variant
    folder.mkdir(parents=True, exist_ok=True)
    url = storage or f"sqlite:///{folder / 'sweep.db'}"
    name = f"{experiment.name} {experiment.variant}, {metric}, seed {seed}{', smoke' * smoke}"
    study = _study(name, url, experiment, metric, seed)
    wanted = trials if trials is not None else prod(len(v) for v in experiment.space.values())
    arguments = (name, url, experiment, wanted, metric, seed, threads)
    if workers == 1:
        _work(*arguments)
    else:
        start = multiprocessing.get_context("spawn")
        crew = [start.Process(target=_work, args=arguments) for _ in range(workers)]
        for one in crew:
            one.start()
        for one in crew:
            one.join()
        if any(one.exitcode for one in crew):
            raise ValueError(f"a worker of the sweep failed; finished trials are kept in {url}")
    found: dict[str, Any] = {
        "sweep": name,
        "metric": f"validation {metric}",
        "seed": seed,
        "smoke": smoke,
        "settings": experiment.settings(),
        "versions": versions(),
        **commit(),
        "machine": machine(),
        "best": {"settings": study.best_params, "value": study.best_value},
        "trials": [
            {
                "settings": one.params,
                "value": one.value,
                "state": one.state.name,
                "seconds": one.duration.total_seconds() if one.duration is not None else None,
            }
            for one in study.get_trials(deepcopy=False)
            if one.state.is_finished()  # not what a killed worker left behind
        ],
    }
    write_atomically(folder / "sweep.json", (json.dumps(found, indent=1) + "\n").encode())
    best = ", ".join(f"{key} {value}" for key, value in study.best_params.items())
    say(f"{name}: {len(found['trials'])} trials, best validation {metric} {study.best_value:.4g}")
    say(f"  with {best} -> {folder / 'sweep.json'}")
    return found


def _study(name: str, url: str, experiment: Experiment, metric: str, seed: int) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        study_name=name,
        storage=url,
        sampler=optuna.samplers.GridSampler(dict(experiment.space), seed=seed),
        direction="maximize" if metric.startswith(HIGHER_IS_BETTER) else "minimize",
        load_if_exists=True,
    )


def _work(
    name: str,
    url: str,
    experiment: Experiment,
    wanted: int,
    metric: str,
    seed: int,
    threads: int | None,
) -> None:
    """Run trials until there are as many as wanted, whoever ran them."""
    import optuna

    prepare(threads)
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

    done = optuna.trial.TrialState.COMPLETE
    enough = optuna.study.MaxTrialsCallback(wanted, states=(done,))
    if len(study.get_trials(deepcopy=False, states=(done,))) < wanted:
        # a trial whose loss is not a number fails alone: those settings are simply no good
        study.optimize(score, callbacks=[enough], catch=(ArithmeticError,))
