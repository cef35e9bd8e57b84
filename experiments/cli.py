"""The command `kasuri`: experiments, sweeps, reports and data sets."""

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro

import kasuri
from experiments import catalog
from experiments import data as datasets
from experiments import report as reports
from experiments.running import Plan, announce, changed, run_all
from experiments.spec import LABELS, Experiment
from experiments.sweeping import sweep as run_sweep
from kasuri.checks import near_misses
from kasuri.training import started_by_torchrun

USAGE = """kasuri: Bayesian neural networks with structured variational posteriors

  kasuri list                       experiments and their variants
  kasuri run NAME [options]         run one: data, training, evaluation, result file
  kasuri sweep NAME [options]       choose its settings on validation data
  kasuri report [PATHS] [options]   result files as one HTML page
  kasuri compare [PATHS]            result files as a table
  kasuri data [NAMES]               data sets: list them, or fetch some

kasuri COMMAND --help lists the options. Several processes:
  torchrun --nproc-per-node=2 -m kasuri run NAME [options]
"""
_CONFIG = (tyro.conf.DisallowNone, tyro.conf.OmitArgPrefixes)


def main(words: list[str] | None = None) -> int:
    """Run a command line; the exit status."""
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        print(f"kasuri {kasuri.__version__}")
        return 0
    name, *rest = words
    try:
        if name in EXPERIMENT_COMMANDS:
            EXPERIMENT_COMMANDS[name](rest)
        elif name in COMMANDS:
            tyro.cli(COMMANDS[name], args=rest, prog=f"kasuri {name}", config=_CONFIG)
        else:
            near = near_misses(name, [*EXPERIMENT_COMMANDS, *COMMANDS])
            print(f"kasuri has no command {name!r}: {near}", file=sys.stderr)
            return 2
    except kasuri.training.Interrupted as stop:
        print(f"\nstopped in {stop.where}; the same command goes on from there", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, head or less, has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - nothing is left to flush into it
    except (ValueError, OSError, ArithmeticError, ImportError) as error:
        print(f"kasuri {name}: {error}", file=sys.stderr)
        return 1
    return 0


@dataclass(frozen=True)
class RunOptions(Plan):
    """How to run.

    Args:
        results: folder of the result files.
        runs: folder of checkpoints and trained networks.
        smoke: a run of seconds, kept apart from real ones.
        force: run again what has a result, from the beginning.
        show: progress bars; by default if the program runs in a terminal, with a single worker.
        variants: rows of the experiment's table; all if none is given.
        seeds: one run each.
        threads: of torch, per worker; as many as torch thinks right by default.
        workers: processes that do runs at the same time on this machine.
    """

    variants: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    threads: int | None = None
    workers: int = 1


def run(words: list[str]) -> None:
    """Run experiments: data, training, evaluation, result file."""
    pattern, rest = _name(words, "run", "quality/digits")
    names = catalog.names(pattern)
    options, given = _parse(RunOptions, names[0], rest, f"run {pattern}")
    rows = [row for name in names for row in catalog.choose(name, list(options.variants))]
    rows = [row.smoke() if options.smoke else row for row in rows]
    rows = [_changed(row, given) for row in rows]
    with started_by_torchrun() as group:
        paths = run_all(
            rows, options.seeds, options, group, announce, options.workers, options.threads
        )
        if group.is_first:
            reports.print_table(reports.compare(reports.read(paths)[0]))


@dataclass(frozen=True)
class SweepOptions:
    """How to choose settings on validation data.

    Args:
        variant: the row of the experiment's table whose settings are chosen.
        trials: runs in all, those of earlier calls included; the whole grid by default.
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


def sweep(words: list[str]) -> None:
    """Choose an experiment's settings on validation data."""
    name, rest = _name(words, "sweep", "k-tied/mnist-mlp")
    options, given = _parse(SweepOptions, name, rest, f"sweep {name}")
    how = asdict(options)
    (row,) = catalog.choose(name, [how.pop("variant")])
    row = row.smoke() if options.smoke else row
    run_sweep(_changed(row, given), say=announce, **how)


def _name(words: list[str], command: str, example: str) -> tuple[str, list[str]]:
    """The experiment's name and the other words."""
    if words and not words[0].startswith("-"):
        return words[0], words[1:]
    known = "\n  ".join(catalog.names())
    usage = f"kasuri {command} NAME [options], e.g. kasuri {command} {example}\n  {known}"
    if words and words[0] in ("-h", "--help"):
        print(usage)
        raise SystemExit(0)
    raise ValueError(usage)


def _parse(kind: type, name: str, words: list[str], command: str) -> tuple[Any, dict[str, Any]]:
    """The options of a command, and the settings of an experiment that were given with them."""
    experiment = next(iter(catalog.variants(name).values()))
    hints = get_type_hints(type(experiment))

    def annotated(setting: str) -> Any:
        hint = f"(here: {getattr(experiment, setting)})"
        return Annotated[hints[setting] | None, tyro.conf.arg(help_behavior_hint=hint)]

    names = _changeable(experiment)
    settings = make_dataclass("Settings", [(n, annotated(n), field(default=None)) for n in names])
    settings.__doc__ = inspect.getdoc(type(experiment))
    both = make_dataclass("Options", [("options", kind), ("settings", settings)])
    both.__doc__ = kind.__doc__
    found: Any = tyro.cli(both, args=words, prog=f"kasuri {command}", config=_CONFIG)
    given = {key: value for key, value in vars(found.settings).items() if value is not None}
    return found.options, given


def _changeable(experiment: Experiment) -> list[str]:
    """The settings of an experiment that the command line can change."""
    settings = (setting for setting in fields(experiment) if not setting.metadata.get("fixed"))
    return [setting.name for setting in settings if setting.name not in LABELS]


def _changed(experiment: Experiment, given: dict[str, Any]) -> Experiment:
    known = _changeable(experiment)
    for name in given.keys() - set(known):
        raise ValueError(
            f"{experiment.name} has no setting {name!r}: {near_misses(name, known)} Experiments of one "
            "kind can be changed together, others one by one"
        )
    return changed(experiment, given)


def list_experiments() -> None:
    """Experiments and their variants."""
    for name in catalog.names():
        variants = catalog.variants(name)
        print(f"{name}\n    {next(iter(variants.values())).title}\n    {' '.join(variants)}")


def report(
    paths: tuple[Path, ...] = (Path("results"),),
    /,
    *,
    output: Path = Path("report.html"),
    title: str = "kasuri report",
    pictures: bool = True,
) -> None:
    """Result files as one HTML page.

    Args:
        paths: result files, or folders of them.
        output: the page.
        title: of the page.
        pictures: show the most uncertain inputs as pictures, if the data are on this machine.
    """
    results, problems = _read(paths)
    page = reports.write_report(
        results,
        output,
        title=title,
        problems=problems,
        pictures=load_if_present if pictures else None,
    )
    print(f"{page}: {len(results)} results")


def load_if_present(name: str) -> datasets.Dataset:
    """A data set that is there: to show a few pictures is no reason for a download."""
    if any(status.name == name and not status.present for status in datasets.status()):
        raise FileNotFoundError(f"not on this machine; `kasuri data {name}` fetches it")
    return datasets.load(name)


def compare(
    paths: tuple[Path, ...] = (Path("results"),),
    /,
    *,
    validation: bool = False,
    markdown: bool = False,
) -> None:
    """Result files as a table in the terminal.

    Args:
        paths: result files, or folders of them.
        validation: scores on the validation data instead of the test data.
        markdown: print Markdown.
    """
    table = reports.compare(_read(paths)[0], validation=validation)
    if markdown:
        print(reports.markdown_table(table))
    else:
        reports.print_table(table)


def _read(paths: tuple[Path, ...]) -> tuple[list[Any], list[Any]]:
    results, problems = reports.read(paths)
    for problem in problems:
        print(f"left out {problem}", file=sys.stderr)
    if not results:
        raise ValueError(
            f"no result files in {', '.join(map(str, paths))}: make some, e.g. kasuri run demo/digits"
        )
    return results, problems


def data(names: tuple[str, ...] = (), /) -> None:
    """Data sets: which are on this machine, and fetching them.

    Args:
        names: data sets to fetch and check; without any, list them all.
    """
    for status in [datasets.fetch(name) for name in names] or datasets.status():
        place = f"{status.size / 1e6:8.1f} MB  {status.where}"
        print(f"{status.name:<16}{place if status.present else 'not on this machine'}")


EXPERIMENT_COMMANDS: dict[str, Callable[[list[str]], None]] = {"run": run, "sweep": sweep}
COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_experiments,
    "report": report,
    "compare": compare,
    "data": data,
}
