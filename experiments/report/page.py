"""The report: results as one HTML page that needs nothing but itself."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments.report import calibration, posteriors, sizes, sweeps, training
from experiments.report.images import sheets
from experiments.report.panels import look
from experiments.report.reading import Result
from experiments.report.score_tables import (
    GAINS_NOTE,
    Column,
    ScoreRow,
    ScoreTable,
    compare,
    gains,
)
from experiments.report.sections import Rows, Section, Table, stored
from experiments.report.text_tables import score_lines
from kasuri.storage import write_atomically

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,  # results may hold anything
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
WIDTH, HEIGHT = 360, 250  # of a figure


def write_report(
    results: Sequence[Result], path: str | os.PathLike[str], *, title: str = "Results"
) -> Path:
    """Write what `read` gives as one self-contained HTML page; its path.

    An existing file is replaced, or left untouched if anything fails.
    """
    path = Path(path)
    page = TEMPLATES.get_template("page.html").render(
        title=title,
        facts=_facts(results),
        experiments=[
            {
                "id": f"{number}-{re.sub(r'[^a-z0-9]+', '-', table.name.lower())}",
                "table": table,
                "scores": _comparison(table),
                "remarks": _remarks(table.rows),
                "sections": [part for make in SECTIONS if (part := make(table.rows))],
                "variants": [_variant(row) for row in table.rows],
            }
            for number, table in enumerate(compare(results), 1)
        ],
        look=look,
        width=WIDTH,
        height=HEIGHT,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode("utf-8", "replace"))
    return path


def _comparison(table: ScoreTable) -> Table:
    """The scores of all variants, below a variant those that are published."""
    head: list[str | Column] = ["variant", "seeds", *table.columns]
    looks = {row.name: row.index for row in table.rows}
    rows = list(score_lines(table, lambda cell: cell))
    return Table("Scores on the test data", head, rows, numbers=True, looks=looks)


def _facts(results: Sequence[Result]) -> list[str]:
    days = sorted({result.started[:10] for result in results if result.started})
    facts = [f"{len(results)} runs", " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))]
    for name in ("kasuri", "weft", "torch"):  # weft: the name of version 0.2
        known = dict.fromkeys(str(r.versions[name]) for r in results if name in r.versions)
        facts.append(f"{name} {', '.join(known)}" if known else "")
    return [fact for fact in facts if fact]


def _remarks(rows: Rows) -> list[str]:
    """What the files say about themselves, each sentence once."""
    notes = [run.figures.get("note") for row in rows for run in row.results]
    return list(dict.fromkeys(str(note) for note in notes if note))


def findings(rows: Rows) -> Section:
    """What `kasuri.diagnose` said about the networks of an experiment, each sentence once a variant."""
    lines: dict[tuple[str, str], None] = {}
    for row in rows:
        for _, value in stored(row, "diagnosis"):
            sentences = [
                f"{finding['what']}: {finding['advice']}." for finding in value["findings"]
            ]
            lines |= {
                (row.name, sentence): None for sentence in sentences or ["Nothing to report."]
            }
    tables = [Table("Findings", ["variant", "finding"], list(lines))] if lines else []
    return Section("Findings", tables=tables)


def differences(rows: Rows) -> Section:
    """Differences to the first variant, where these matter."""
    name, lines = gains(rows)
    tables = [Table(name, lines[0], lines[1:])] if lines else []
    return Section(name[:1].upper() + name[1:], note=GAINS_NOTE, tables=tables)


SECTIONS = (
    sweeps.sweeps,
    findings,
    sizes.frontiers,
    training.training_curves,
    training.convergence,
    calibration.reliability,
    calibration.intervals,
    differences,
    sheets,
    posteriors.spectra,
)


def _variant(row: ScoreRow) -> Section:
    """All about one variant: layers, and folded up its provenance."""
    runs = _runs(row.results)
    parts = [posteriors.layers(row), Section(runs.name, tables=[runs], folded=True)]
    seeds = f"seeds {', '.join(str(result.seed) for result in row.results)}"
    return Section(seeds, parts=[part for part in parts if part], row=row)


def _runs(results: Sequence[Result]) -> Table:
    """Settings, versions, machine and provenance; several values if seeds differ."""
    runs = [
        {
            **run.settings,
            **run.versions,
            **run.machine,
            "commit": run.commit[:12] + (" with uncommitted changes" if run.dirty else ""),
            "started": run.started.replace("T", " "),
            "seconds": run.seconds,
        }
        for run in results
    ]
    lines = []
    for key in dict.fromkeys(key for run in runs for key in run):
        values = [json.dumps(run.get(key), default=str) for run in runs]
        lines.append([key.replace("_", " "), " / ".join(dict.fromkeys(values))])
    return Table("Settings, versions and machine", ["setting", "value"], lines)
