"""The command `kasuri`: experiments, sweeps, reports and data sets."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Any

import tyro

import kasuri
from experiments import catalog
from experiments import data as datasets
from experiments import report as reports
from experiments.running import Plan, run_all
from experiments.spec import Experiment
from experiments.sweeping import Sweep, run_sweep
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
_CONFIG = (tyro.conf.DisallowNone, tyro.conf.OmitArgPrefixes, tyro.conf.SuppressFixed)


def main(words: list[str] | None = None) -> int:
    """Run a command line; the exit status."""
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        print(f"kasuri {kasuri.__version__}")
        return 0
    command, *rest = words
    if command not in COMMANDS:
        near = near_misses(command, COMMANDS)
        print(f"kasuri has no command {command!r}: {near}", file=sys.stderr)
        return 2
    try:
        if command in ("run", "sweep"):
            COMMANDS[command](rest)
        else:
            tyro.cli(COMMANDS[command], args=rest, prog=f"kasuri {command}", config=_CONFIG)
    except kasuri.training.Interrupted as stop:
        print(f"\nstopped in {stop.where}; the same command goes on from there", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, head or less, has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - nothing is left to flush into it
    except (ValueError, OSError, ArithmeticError, ImportError) as error:
        print(f"kasuri {command}: {error}", file=sys.stderr)
        return 1
    return 0


@dataclass(frozen=True)
class RunOptions(Plan):
    """How to run."""

    variants: tuple[str, ...] = ()  # rows of the experiment's table; all if none is given
    seeds: tuple[int, ...] = (0,)  # one run each


def run(words: list[str]) -> None:
    """Run the experiments of a pattern: data, training, evaluation, result file."""
    options, rows = _chosen("run", RunOptions, words)
    with started_by_torchrun() as group:
        paths = run_all(rows, options.seeds, options, group)
        if group.is_first:
            reports.print_table(reports.compare(reports.read(paths)[0]))


def sweep(words: list[str]) -> None:
    """Choose an experiment's settings on validation data."""
    options, rows = _chosen("sweep", Sweep, words)
    for row in rows:
        run_sweep(row, options)


def _chosen(command: str, options: type, words: list[str]) -> tuple[Any, list[Experiment]]:
    """The options of a command, and the rows that it is about with the settings that were given."""
    if not words or words[0].startswith("-"):
        known = "\n  ".join(catalog.names())
        raise ValueError(
            f"write kasuri {command} NAME [options] with one of these names\n  {known}"
        )
    pattern, *rest = words
    names = catalog.names(pattern)

    def parsed(row: Experiment) -> Any:
        settings = ("settings", type(row), field(default=row))
        both = make_dataclass("both", [("options", options), settings])
        return tyro.cli(both, args=rest, prog=f"kasuri {command} {row.name}", config=_CONFIG)

    def changed(row: Experiment) -> Experiment:
        new = parsed(row).settings
        return row.changed(**{setting.name: getattr(new, setting.name) for setting in fields(new)})

    given = parsed(_first(names[0])).options
    rows = [row for name in names for row in catalog.variants(name, *given.variants).values()]
    return given, [changed(row.smoke() if given.smoke else row) for row in rows]


def _first(name: str) -> Experiment:
    return next(iter(catalog.variants(name).values()))


def list_experiments() -> None:
    for name in catalog.names():
        print(f"{name}\n    {_first(name).title}\n    {' '.join(catalog.variants(name))}")


def report(
    paths: tuple[Path, ...] = (Path("results"),),
    /,
    *,
    output: Path = Path("report.html"),
    title: str = "kasuri report",
) -> None:
    """Result files as one HTML page.

    Args:
        paths: result files, or folders of them.
        output: the page.
        title: of the page.
    """
    results = _read(paths)
    page = reports.write_report(results, output, title=title)
    print(f"{page}: {len(results)} results")


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
    table = reports.compare(_read(paths), validation=validation)
    if markdown:
        print(reports.markdown_table(table))
    else:
        reports.print_table(table)


def _read(paths: tuple[Path, ...]) -> list[reports.Result]:
    results, problems = reports.read(paths)
    for problem in problems:
        print(f"left out {problem}", file=sys.stderr)
    if not results:
        raise ValueError(
            f"no result files in {', '.join(map(str, paths))}: make some, e.g. kasuri run demo/digits"
        )
    return results


def data(names: tuple[str, ...] = (), /) -> None:
    """Data sets: which are on this machine, and fetching them.

    Args:
        names: data sets to fetch and check; without any, list them all.
    """
    for name in names:
        datasets.load(name)
    for name, place in datasets.status().items():
        if not names or name in names:
            print(f"{name:<16}{place or 'not on this machine'}")


COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "sweep": sweep,
    "list": list_experiments,
    "report": report,
    "compare": compare,
    "data": data,
}
