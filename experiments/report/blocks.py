"""Blocks of the page: the comparison table, and everything about one variant."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.report.cards import uncertain_block
from experiments.report.columns import Column
from experiments.report.figures import folded, swatch
from experiments.report.layers import layers_block, stored_layers
from experiments.report.markup import Html, el, join, scrolling, sortable
from experiments.report.pictures import Pictures
from experiments.report.results import Group, Result, Row
from experiments.report.scores import Cell, pool
from experiments.report.values import decimals_for, finite, fixed, short

Link = Callable[[Result], Html | None]
_MARKS = {"best": "best", "tied": "within one standard error of the best"}


def comparison(group: Group, caption: str) -> Html:
    """The table of an experiment; its header buttons sort it."""
    head = [sortable("variant", "", "ascending"), sortable("seeds", "", "descending", "number")]
    head += [_column_header(column) for column in group.columns]
    body = [_row(group, index, row) for index, row in enumerate(group.rows)]
    table = el(
        "table",
        el("caption", caption),
        el("thead", el("tr", *head)),
        *body,
        class_="comparison dense" if len(group.columns) > 6 else "comparison",
    )
    marked = any(cell.mark for row in group.rows for cell in row.cells.values())
    legend = [
        el("span", "Bold", class_="best"),
        ": best of its column. ",
        el("span", "Underlined", class_="tied"),
        ": within one standard error of the best. ",
    ]
    notes = [*(legend if marked else []), " ".join(group.notes)]
    return join([scrolling(table, caption), el("p", *notes, class_="note")])


def _column_header(column: Column) -> Html:
    first = "descending" if column.better == "higher" else "ascending"
    return sortable(column.label, column.explanation, first, "number")


def _row(group: Group, index: int, row: Row) -> Html:
    """The row of a variant and the row of its published values, which move together."""
    name = [swatch(index), el("span", row.variant)]
    if row.smoke:
        name.append(el("span", "smoke", class_="badge"))
    cells = [row.cells.get(column.key) for column in group.columns]
    measured = el(
        "tr",
        el("th", el("span", *name, class_="variant"), scope="row", data_value=row.name),
        el("td", str(len(row.results)), class_="number", data_value=len(row.results)),
        *(_cell(cell) for cell in cells),
        class_="smoke" if row.smoke else None,
    )
    published = el(
        "tr",
        el("th", "published", el("span", f" for {row.name}", class_="unseen"), scope="row"),
        el("td"),
        *(el("td", *_published(cell), class_="number") for cell in cells),
        class_="published",
    )
    return el("tbody", measured, published if any(c and c.published for c in cells) else None)


def _published(cell: Cell | None) -> list[Html]:
    value, _, error = cell.published.partition(" ± ") if cell else ("", "", "")
    shown = [el("span", minus(value))] if value else []
    return [*shown, el("span", f" ± {error}", class_="error")] if error else shown


def _cell(cell: Cell | None) -> Html:
    if cell is None or cell.value is None:
        return el("td", el("span", "–", title="not in the file"), class_="number")
    title = f"standard error over {cell.over}" if cell.error_text else None
    return el(
        "td",
        el("span", minus(cell.text), class_=cell.mark or None),
        el("span", f" ({_MARKS[cell.mark]})", class_="unseen") if cell.mark else None,
        el("span", f" ± {cell.error_text}", class_="error", title=title) if title else None,
        class_="number",
        data_value=finite(cell.value),
    )


def variant(index: int, row: Row, pictures: Pictures, link: Link) -> Html:
    """All about one variant, folded up: layers, uncertain inputs, scores, settings, provenance."""
    stored = stored_layers(row.results)
    cards = uncertain_block(row.results, pictures)
    parts = (("posterior per layer", stored), ("uncertain test inputs", cards))
    absent = [what for what, found in parts if found is None]
    word = "seed" if len(row.results) == 1 else "seeds"
    facts = [f"{word} {', '.join(str(result.seed) for result in row.results)}"]
    if (size := row.cells.get("parameters")) and size.text:
        facts.insert(0, f"{size.text} parameters")
    return folded(
        index,
        row,
        " · ".join(facts),
        layers_block(*stored) if stored else None,
        cards,
        el("p", f"Not in the file: {', '.join(absent)}.", class_="note") if absent else None,
        _scores(row),
        _provenance(row, link),
        unfolded=index == 0,
    )


def _scores(row: Row) -> Html | None:
    test, valid = ([getattr(r, name) for r in row.results] for name in ("metrics", "validation"))
    keys = dict.fromkeys(key for one in (*test, *valid) for key in one if not key.endswith("_sem"))
    if not keys:
        return None
    lines = [
        el(
            "tr",
            el("th", el("code", key), scope="row"),
            *(el("td", _pooled(pool(key, part)), class_="number") for part in (test, valid)),
        )
        for key in keys
    ]
    head = [el("th", "score", scope="col")]
    head += [el("th", name, scope="col", class_="number") for name in ("test", "validation")]
    table = el("table", el("thead", el("tr", *head)), el("tbody", *lines))
    return el("details", el("summary", "Every score"), scrolling(table, "Every score"))


def _pooled(cell: Cell | None) -> str:
    if cell is None or cell.value is None:
        return "–"
    if not cell.error:
        return minus(short(cell.value))
    decimals = decimals_for([cell.value], [cell.error], most=6)
    return minus(f"{fixed(cell.value, decimals)} ± {fixed(cell.error, decimals)}")


def _provenance(row: Row, link: Link) -> Html:
    runs = [_run(result, link) for result in row.results]
    columns = [key for key in dict.fromkeys(k for run in runs for k in run)]
    head = el("tr", *(el("th", key, scope="col") for key in columns))
    body = [el("tr", *(el("td", run.get(key, "–")) for key in columns)) for run in runs]
    table = el("table", el("thead", head), el("tbody", *body))
    return el(
        "details",
        el("summary", "Settings and provenance"),
        _facts("Settings", [r.settings for r in row.results]),
        _facts("Versions", [r.versions for r in row.results]),
        _facts("Machine", [r.machine for r in row.results]),
        el("h4", "Runs"),
        scrolling(table, "Runs"),
    )


def _run(result: Result, link: Link) -> Mapping[str, str]:
    found: dict[str, str] = {"seed": str(result.seed)}
    found |= {f"{key} (s)": short(value) for key, value in result.seconds.items()}
    if result.started:
        found["started"] = result.started.replace("T", " ")
    if result.commit:
        changed = " with uncommitted changes" if result.dirty else ""
        found["commit"] = join([el("code", result.commit[:12], title=result.commit), changed])
    model = link(result)
    if model is not None:
        found["model"] = model
    return found


def _facts(title: str, sections: Sequence[Mapping[str, Any]]) -> Html | None:
    keys = dict.fromkeys(key for section in sections for key in section)
    if not keys:
        return None
    entries = [
        el("div", el("dt", key.replace("_", " ")), el("dd", _values(sections, key))) for key in keys
    ]
    return join([el("h4", title), el("dl", *entries, class_="facts")])


def _values(sections: Sequence[Mapping[str, Any]], key: str) -> str:
    """The value, or all of them if seeds differ."""
    return " / ".join(dict.fromkeys(_shown(section.get(key)) for section in sections))


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)


def minus(text: str) -> str:
    """Numbers with a true minus sign."""
    return text.replace("-", "−")
