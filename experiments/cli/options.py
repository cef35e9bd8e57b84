"""Options of the commands: dataclasses that tyro turns into command lines."""

import inspect
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from experiments.spec import Experiment
from kasuri.checks import near_misses

_NOT_CHANGED = ("name", "variant", "title", "published", "space")


@dataclass(frozen=True)
class RunOptions:
    """How to run.

    Args:
        variants: rows of the experiment's table; all if not told.
        seeds: one run each.
        smoke: a run of seconds, kept apart from real ones.
        force: run again what has a result.
        results: folder of the result files.
        runs: folder of checkpoints and trained networks.
        threads: of torch, per worker; as many as torch thinks right if not told.
        workers: processes that do runs at the same time on this machine.
        progress: show bars; by default if the program runs in a terminal, with a single worker.
    """

    variants: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    smoke: bool = False
    force: bool = False
    results: Path = Path("results")
    runs: Path = Path("runs")
    threads: int | None = None
    workers: int = 1
    progress: bool | None = None


@dataclass(frozen=True)
class SweepOptions:
    """How to choose settings on validation data.

    Args:
        variant: the row of the experiment's table whose settings are chosen.
        trials: runs in all, those of earlier calls included; the whole grid if not told.
        workers: processes that run trials at the same time on this machine.
        storage: where trials are kept, any URL that SQLAlchemy knows: workers on several machines
            share one. By default a SQLite file in the folder of results.
        metric: to minimise on the validation data.
        seed: of every trial.
        smoke: trials of seconds.
        results: folder for the SQLite file and the summary.
        threads: of torch, per worker.
    """

    variant: str
    trials: int | None = None
    workers: int = 1
    storage: str | None = None
    metric: str = "nll"
    seed: int = 0
    smoke: bool = False
    results: Path = Path("results")
    threads: int | None = None


def with_overrides(options: type, experiment: Experiment) -> type:
    """The options of a command, and every setting of the experiment that can be changed."""
    import tyro

    kind = type(experiment)
    hints, own = get_type_hints(kind), get_type_hints(options)

    def told(name: str) -> Any:
        hint = f"(here: {getattr(experiment, name)})"
        return Annotated[hints[name] | None, tyro.conf.arg(help_behavior_hint=hint)]

    added: list[Any] = [
        (one.name, told(one.name), field(default=None)) for one in settable(experiment)
    ]
    kept: list[Any] = [
        (one.name, own[one.name], field() if one.default is MISSING else field(default=one.default))
        for one in fields(options)
    ]
    merged = make_dataclass("Options", kept + added, frozen=True)
    merged.__doc__ = f"{_doc(options)}\n{_arguments(kind)}"
    return merged


def settable(experiment: Experiment) -> list[Any]:
    """The fields of an experiment that the command line can change."""
    return [
        one
        for one in fields(experiment)
        if one.name not in _NOT_CHANGED and not one.metadata.get("fixed")
    ]


def overrides(options: Any, kind: type, experiment: Experiment) -> dict[str, Any]:
    """The settings that were given on the command line, beside the options of this kind."""
    known = {one.name for one in settable(experiment)}
    own = {one.name for one in fields(kind)}
    given = {one.name: getattr(options, one.name) for one in fields(options) if one.name not in own}
    told = {name: value for name, value in given.items() if value is not None}
    for name in told.keys() - known:
        raise ValueError(
            f"{experiment.name} has no setting {name!r}: {near_misses(name, known)}; experiments of one kind "
            "can be changed together, others one by one"
        )
    return told


def _doc(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "")


def _arguments(kind: type) -> str:
    """The lines of a docstring's Args section."""
    return _doc(kind).partition("Args:\n")[2].partition("\n\n")[0]
