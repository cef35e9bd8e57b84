"""What `kasuri.diagnose` said about the networks of an experiment."""

from collections.abc import Iterator, Sequence

from experiments.report.figures import swatch
from experiments.report.markup import Html, el
from experiments.report.results import Row
from experiments.report.stored import told
from experiments.report.values import mapping, records

_MOST = 8  # findings of a variant that are shown; the file has all


def findings(rows: Sequence[Row]) -> Iterator[Html]:
    """A list of findings per variant that was looked at; nothing if none was."""
    looked = [(index, row) for index, row in enumerate(rows) if told(row.results, "diagnosis")]
    if not looked:
        return
    yield el("h3", "Findings")
    entries, silent = [], []
    for index, row in looked:
        said = sentences(row)
        if said:
            more = len(said) - _MOST
            shown = [el("li", one) for one in said[:_MOST]]
            shown += [el("li", f"and {more} more")] if more > 0 else []
            entries.append(
                el("li", swatch(index), el("span", row.name, class_="name"), el("ul", *shown))
            )
        else:
            silent.append(row.name)
    if entries:
        yield el("ul", *entries, class_="findings")
    if silent:
        yield el("p", f"Nothing to report: {', '.join(silent)}.", class_="note")


def sentences(row: Row) -> list[str]:
    """The findings of all seeds of a variant, each once."""
    found: dict[str, None] = {}
    for _, value in told(row.results, "diagnosis"):
        for one in records(mapping(value).get("findings")):
            what, advice = one.get("what"), one.get("advice")
            if isinstance(what, str) and isinstance(advice, str):
                found[f"{what}: {advice}."] = None
    return list(found)
