"""The command `kasuri`: experiments, sweeps, reports and data sets."""

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
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

kasuri COMMAND --help tells the options. Several processes:
  torchrun --nproc-per-node=2 -m kasuri run NAME [options]
"""


def main(words: list[str] | None = None) -> int:
    """Run a command line; the exit status."""
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        print(f"kasuri {kasuri.__version__}")
        return 0
    name = words[0]
    if name not in COMMANDS:
        print(f"kasuri has no command {name!r}: {near_misses(name, COMMANDS)}", file=sys.stderr)
        return 2
    try:
        COMMANDS[name](words[1:])
    except kasuri.Interrupted as stop:
        print(f"\nstopped in {stop.where}; the same command goes on from there", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, head or less, has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - nothing is left to flush into it
        return 0
    except (ValueError, OSError, ArithmeticError, ImportError) as error:
        print(f"kasuri {name}: {error}", file=sys.stderr)
        return 1
    return 0


def list_experiments(words: list[str]) -> None:
    """Experiments and their variants."""
    if words:
        raise ValueError("kasuri list takes no options")
    for name in catalog.names():
        variants = catalog.variants(name)
        print(f"{name}\n    {next(iter(variants.values())).title}\n    {' '.join(variants)}")


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


def run(words: list[str]) -> None:
    """Run experiments: data, training, evaluation, result file."""
    pattern, rest = _name(words, "run", "quality/digits")
    names = catalog.names(pattern)
    first = next(iter(catalog.variants(names[0]).values()))
    options = _parse(with_settings(RunOptions, first), rest, f"run {pattern}")
    rows = [row for name in names for row in catalog.choose(name, list(options.variants))]
    rows = [row.smoke() if options.smoke else row for row in rows]
    rows = [changed(row, given_settings(options, RunOptions, row)) for row in rows]
    plan = Plan(options.results, options.runs, options.smoke, options.force, options.progress)
    with started_by_torchrun() as group:
        paths = run_all(
            rows, options.seeds, plan, group, announce, options.workers, options.threads
        )
        if group.is_first:
            reports.print_table(reports.compare(reports.read(paths)[0]))


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


def sweep(words: list[str]) -> None:
    """Choose an experiment's settings on validation data."""
    name, rest = _name(words, "sweep", "k-tied/mnist-mlp")
    first = next(iter(catalog.variants(name).values()))
    options = _parse(with_settings(SweepOptions, first), rest, f"sweep {name}")
    (row,) = catalog.choose(name, [options.variant])
    row = row.smoke() if options.smoke else row
    how = {one.name: getattr(options, one.name) for one in fields(SweepOptions)}
    del how["variant"]
    run_sweep(changed(row, given_settings(options, SweepOptions, row)), say=announce, **how)


@dataclass(frozen=True)
class ReportOptions:
    """Result files as one HTML page.

    Args:
        paths: result files, or folders of them.
        output: the page.
        title: of the page.
        pictures: show the most uncertain inputs as pictures, if the data are on this machine.
        checkpoints: folder of trained networks to link to.
    """

    paths: tuple[Path, ...] = (Path("results"),)
    output: Path = Path("report.html")
    title: str = "kasuri report"
    pictures: bool = True
    checkpoints: Path | None = None


def report(words: list[str]) -> None:
    """Write the report page."""
    options: ReportOptions = _parse(ReportOptions, words, "report", positional=True)
    results, problems = _read(options.paths)
    runs = options.checkpoints

    def network(result: reports.Result) -> Path:
        folder = Path("smoke" if result.smoke else "", result.experiment, result.variant)
        return (runs or Path()) / folder / str(result.seed) / "model.safetensors"

    page = reports.write_report(
        results,
        options.output,
        title=options.title,
        problems=problems,
        pictures=load_if_present if options.pictures else None,
        checkpoints=None if runs is None else network,
    )
    print(f"{page}: {len(results)} results")


@dataclass(frozen=True)
class CompareOptions:
    """Result files as a table in the terminal.

    Args:
        paths: result files, or folders of them.
        validation: scores on the validation data instead of the test data.
        markdown: print Markdown.
    """

    paths: tuple[Path, ...] = (Path("results"),)
    validation: bool = False
    markdown: bool = False


def compare(words: list[str]) -> None:
    """Print the comparison table."""
    options: CompareOptions = _parse(CompareOptions, words, "compare", positional=True)
    table = reports.compare(_read(options.paths)[0], validation=options.validation)
    if options.markdown:
        print(reports.markdown_table(table))
    else:
        reports.print_table(table)


@dataclass(frozen=True)
class DataOptions:
    """Data sets: which are on this machine, and fetching them.

    Args:
        names: data sets to fetch and check; without any, list them all.
    """

    names: tuple[str, ...] = ()


def data(words: list[str]) -> None:
    """List or fetch data sets."""
    options: DataOptions = _parse(DataOptions, words, "data", positional=True)
    for status in [datasets.fetch(name) for name in options.names] or datasets.status():
        place = f"{status.size / 1e6:8.1f} MB  {status.where}"
        print(f"{status.name:<16}{place if status.present else 'not on this machine'}")


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "list": list_experiments,
    "run": run,
    "sweep": sweep,
    "report": report,
    "compare": compare,
    "data": data,
}


def load_if_present(name: str) -> datasets.Dataset:
    """A data set that is there: to show a few pictures is no reason for a download."""
    if any(status.name == name and not status.present for status in datasets.status()):
        raise FileNotFoundError(f"not on this machine; `kasuri data {name}` fetches it")
    return datasets.load(name)


def with_settings(options: type, experiment: Experiment) -> type:
    """The options of a command, and every setting of the experiment that can be changed."""
    kind = type(experiment)
    hints, own = get_type_hints(kind), get_type_hints(options)

    def annotated(name: str) -> Any:
        hint = f"(here: {getattr(experiment, name)})"
        return Annotated[hints[name] | None, tyro.conf.arg(help_behavior_hint=hint)]

    kept: list[Any] = [
        (one.name, own[one.name], field() if one.default is MISSING else field(default=one.default))
        for one in fields(options)
    ]
    added: list[Any] = [
        (name, annotated(name), field(default=None)) for name in _changeable(experiment)
    ]
    merged = make_dataclass("Options", kept + added, frozen=True)
    arguments = inspect.cleandoc(kind.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    merged.__doc__ = f"{inspect.cleandoc(options.__doc__ or '')}\n{arguments}"
    return merged


def given_settings(options: Any, kind: type, experiment: Experiment) -> dict[str, Any]:
    """The settings that were given on the command line, beside the options of this kind."""
    own = {one.name for one in fields(kind)}
    names = [one.name for one in fields(options) if one.name not in own]
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    known = _changeable(experiment)
    for name in given.keys() - set(known):
        raise ValueError(
            f"{experiment.name} has no setting {name!r}: {near_misses(name, known)} Experiments of one "
            "kind can be changed together, others one by one"
        )
    return given


def _changeable(experiment: Experiment) -> list[str]:
    """The settings of an experiment that the command line can change."""
    settings = (one for one in fields(experiment) if not one.metadata.get("fixed"))
    return [one.name for one in settings if one.name not in LABELS]


def _read(paths: tuple[Path, ...]) -> tuple[list[Any], list[Any]]:
    results, problems = reports.read(paths)
    for problem in problems:
        print(f"left out {problem}", file=sys.stderr)
    if not results:
        raise ValueError(
            f"no result files in {', '.join(map(str, paths))}: make some, e.g. kasuri run demo/digits"
        )
    return results, problems


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


def _parse(kind: Any, words: list[str], command: str, positional: bool = False) -> Any:
    """The options; leading words without a name belong to the first one if it is positional."""
    if positional and words and not words[0].startswith("-"):
        words = [f"--{fields(kind)[0].name}", *words]
    config = (tyro.conf.DisallowNone,)
    return tyro.cli(kind, args=words, prog=f"kasuri {command}", config=config)
