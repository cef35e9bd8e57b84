"""The commands: each takes the words behind its name."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import catalog
from experiments import data as datasets
from experiments import report as reports
from experiments.cli.options import RunOptions, SweepOptions, overrides, with_overrides
from experiments.running import Plan, changed, run_all
from experiments.sweeping import sweep as run_sweep
from kasuri.training.distributed import started_by_torchrun


class UsageError(ValueError):
    """A command line that cannot be meant."""


def list_experiments(words: list[str]) -> None:
    """Experiments and their variants."""
    if words:
        raise UsageError("kasuri list takes no options")
    for name in catalog.names():
        variants = catalog.variants(name)
        print(f"{name}\n    {next(iter(variants.values())).title}\n    {' '.join(variants)}")


def run(words: list[str]) -> None:
    """Run an experiment: data, training, evaluation, result file."""
    name, rest = _name(words, "run", "quality/digits")
    names = catalog.matching(name)
    kinds = list(catalog.variants(names[0]).values())
    options = _parse(with_overrides(RunOptions, kinds[0]), rest, f"run {name}")
    chosen = [one for each in names for one in catalog.choose(each, list(options.variants))]
    if options.smoke:
        chosen = [one.smoke() for one in chosen]
    chosen = [changed(one, overrides(options, RunOptions, one)) for one in chosen]
    plan = Plan(options.results, options.runs, options.smoke, options.force, options.progress)
    with started_by_torchrun() as group:
        paths = run_all(chosen, options.seeds, plan, group, _say, options.workers, options.threads)
        if group.is_first:
            reports.print_table(reports.compare(reports.read(paths)[0]))


def sweep(words: list[str]) -> None:
    """Choose an experiment's settings on validation data."""
    name, rest = _name(words, "sweep", "k-tied/mnist-mlp")
    kinds = list(catalog.variants(name).values())
    options = _parse(with_overrides(SweepOptions, kinds[0]), rest, f"sweep {name}")
    (chosen,) = catalog.choose(name, [options.variant])
    if options.smoke:
        chosen = chosen.smoke()
    run_sweep(
        changed(chosen, overrides(options, SweepOptions, chosen)),
        trials=options.trials,
        workers=options.workers,
        storage=options.storage,
        metric=options.metric,
        seed=options.seed,
        smoke=options.smoke,
        results=options.results,
        threads=options.threads,
        say=_say,
    )


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
    options = _parse(ReportOptions, words, "report", positional=True)
    results, problems = _read(options.paths)
    page = reports.write_report(
        results,
        options.output,
        title=options.title,
        problems=problems,
        pictures=_load if options.pictures else None,
        checkpoints=None if options.checkpoints is None else _networks(options.checkpoints),
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
    options = _parse(CompareOptions, words, "compare", positional=True)
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
    options = _parse(DataOptions, words, "data", positional=True)
    found = [datasets.fetch(name) for name in options.names] or datasets.status()
    for one in found:
        state = f"{one.size / 1e6:8.1f} MB  {one.where}" if one.present else "not on this machine"
        print(f"{one.name:<16}{state}")


def _networks(runs: Path) -> Callable[[reports.Result], Path]:
    def of(result: reports.Result) -> Path:
        folder = runs / ("smoke" if result.smoke else "") / result.experiment / result.variant
        return folder / str(result.seed) / "model.safetensors"

    return of


def _load(name: str) -> Any:
    """A data set that is there: to show a few pictures is no reason for a download."""
    if any(one.name == name and not one.present for one in datasets.status()):
        raise FileNotFoundError(f"not on this machine; `kasuri data {name}` fetches it")
    return datasets.load(name)


def _read(paths: tuple[Path, ...]) -> tuple[list[Any], list[Any]]:
    results, problems = reports.read(paths)
    for problem in problems:
        print(f"left out {problem}", file=sys.stderr)
    if not results:
        raise UsageError(
            f"no result files in {', '.join(map(str, paths))}: make some, e.g. kasuri run demo/digits"
        )
    return results, problems


def _name(words: list[str], command: str, example: str) -> tuple[str, list[str]]:
    """The experiment's name and the other words."""
    if not words or words[0].startswith("-"):
        asked = bool(words) and words[0] in ("-h", "--help")
        known = "\n  ".join(catalog.names())
        usage = f"kasuri {command} NAME [options], e.g. kasuri {command} {example}\n  {known}"
        if asked:
            print(usage)
            raise SystemExit(0)
        raise UsageError(usage)
    return words[0], words[1:]


def _parse(kind: Any, words: list[str], command: str, positional: bool = False) -> Any:
    import tyro

    config = (tyro.conf.DisallowNone,)
    if positional:
        first = next(iter(kind.__dataclass_fields__))
        words = _named(first, words)
    return tyro.cli(kind, args=words, prog=f"kasuri {command}", config=config)


def _named(first: str, words: list[str]) -> list[str]:
    """The leading words without an option's name belong to the first option."""
    count = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return [f"--{first}", *words[:count], *words[count:]] if count else words


def _say(text: str) -> None:
    print(text, flush=True)
