"""The report: results as one HTML page that needs nothing but itself."""

import os
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from urllib.parse import quote

from experiments.report.blocks import Link, comparison, variant
from experiments.report.markup import Html, el, join, slug
from experiments.report.pictures import PictureData, Pictures
from experiments.report.results import Group, Problem, Result, Table, compare
from experiments.report.sections import figure_sections
from kasuri.storage import write_atomically

_STYLES = ("page.css", "tables.css", "figures.css", "variants.css")


def write_report(
    results: Iterable[Result],
    path: str | os.PathLike[str],
    *,
    title: str = "Results",
    problems: Sequence[Problem] = (),
    pictures: Callable[[str], PictureData] | None = None,
    checkpoints: Callable[[Result], str | os.PathLike[str] | None] | None = None,
) -> Path:
    """Write results as one self-contained HTML page: tables, figures, pictures, provenance.

    Args:
        results: from `read`.
        path: of the page; an existing file is replaced, or left untouched if anything fails.
        title: of the page.
        problems: from `read`; the page lists them.
        pictures: the data set of a name (`settings["data"]`), to show uncertain inputs as pictures.
        checkpoints: where the trained network of a result is; linked relative to the page.

    Returns:
        The path of the page.

    Raises:
        ImportError: plotly is not installed.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = Result("e", "plain", 0, metrics={"nll": 0.5})
        ...     page = write_report([run], folder + "/report.html")
        ...     "plain" in page.read_text()
        True
    """
    path = Path(path)
    results = list(results)
    text = _page(results, title, problems, Pictures(pictures), _linker(checkpoints, path))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode("utf-8", "replace"))
    return path


def _page(
    results: Sequence[Result],
    title: str,
    problems: Sequence[Problem],
    pictures: Pictures,
    link: Link,
) -> str:
    table, validation = compare(results), compare(results, validation=True)
    taken = {"main", "problems"}
    names = [slug(group.experiment, taken) for group in table.groups]
    sections = [
        _section(name, group, other, pictures, link)
        for name, group, other in zip(names, table.groups, validation.groups, strict=True)
    ]
    nothing = el("p", "There is nothing to show: no result was given.", class_="note")
    return Template(_resource("page.html")).substitute(
        title=join([title]),
        style="\n".join(map(_resource, _STYLES)),
        plotly=_plotly(),
        script=_resource("page.js"),
        overview=_overview(results, table),
        navigation=_navigation(names, table.groups, problems),
        problems=_problems(problems),
        sections=join(sections) if sections else nothing,
    )


def _overview(results: Sequence[Result], table: Table) -> Html:
    variants = sum(len(group.rows) for group in table.groups)
    counts = [(len(table.groups), "experiment"), (variants, "variant"), (len(results), "run")]
    told = [", ".join(f"{n} {word}{'' if n == 1 else 's'}" for n, word in counts)]
    days = sorted({result.started[:10] for result in results if result.started})
    if days:
        told.append(days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}")
    for name in ("kasuri", "torch"):
        known = dict.fromkeys(str(r.versions[name]) for r in results if name in r.versions)
        if known:
            told.append(f"{name} {', '.join(known)}")
    return el("p", " · ".join(told), class_="overview")


def _navigation(
    names: Sequence[str], groups: Sequence[Group], problems: Sequence[Problem]
) -> Html | None:
    links = [
        el("li", el("a", group.experiment, href=f"#{name}"))
        for name, group in zip(names, groups, strict=True)
    ]
    if problems:
        links.append(el("li", el("a", f"Problems ({len(problems)})", href="#problems")))
    return el("nav", el("ul", *links), aria_label="Experiments") if links else Html()


def _problems(problems: Sequence[Problem]) -> Html:
    if not problems:
        return Html()
    entries = [el("li", el("code", _short(p.path)), f": {p.reason}") for p in problems]
    return el(
        "section",
        el("h2", "Files that could not be used"),
        el("ul", *entries),
        id="problems",
        class_="problems",
    )


def _section(name: str, group: Group, validation: Group, pictures: Pictures, link: Link) -> Html:
    rows = group.rows
    scored = any(result.validation for row in rows for result in row.results)
    return el(
        "section",
        el("h2", group.experiment),
        el("p", group.title, class_="lead") if group.title else None,
        comparison(group, "Scores on the test data"),
        el(
            "details",
            el("summary", "Scores on the validation data"),
            comparison(validation, "Scores on the validation data"),
        )
        if scored
        else None,
        *figure_sections(rows),
        el("h3", "Variants in detail"),
        *(variant(index, row, pictures, link) for index, row in enumerate(rows)),
        id=name,
        class_="experiment",
        data_scope=True,
    )


def _linker(
    checkpoints: Callable[[Result], str | os.PathLike[str] | None] | None, page: Path
) -> Link:
    """A function from a result to a link to its trained network, relative to the page."""

    def link(result: Result) -> Html | None:
        target = checkpoints(result) if checkpoints else None
        if target is None or not Path(target).exists():
            return None
        relative = Path(os.path.relpath(target, page.parent)).as_posix()
        return el("a", Path(target).name, href=quote(relative))

    return link


def _short(path: str) -> str:
    """A path without the part that only this machine knows."""
    full = Path(path)
    if not full.is_absolute():
        return path
    if full.is_relative_to(Path.cwd()):
        return str(full.relative_to(Path.cwd()))
    return str(Path(*full.parts[-4:]))


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ImportError("kasuri report needs plotly: pip install kasuri[cli]") from None
    return str(get_plotlyjs())


def _resource(name: str) -> str:
    return files("kasuri.report").joinpath(name).read_text(encoding="utf-8")
