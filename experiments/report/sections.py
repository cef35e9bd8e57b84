"""The sections of an experiment that compare its variants in figures, and what is missing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.report.calibration import intervals, ood, reliability
from experiments.report.compressions import compressions
from experiments.report.figures import Figure, curves, legend
from experiments.report.findings import findings
from experiments.report.frontiers import frontiers
from experiments.report.gains import gain_table
from experiments.report.gradients import gradient_tables
from experiments.report.heatmaps import heat_maps
from experiments.report.markup import Html, el
from experiments.report.results import Row
from experiments.report.sheets import sheets
from experiments.report.sparsities import sparsity_table
from experiments.report.spectra import spectra
from experiments.report.steps import convergence, drift
from experiments.report.stored import told
from experiments.report.sweeps import sweeps


@dataclass(frozen=True)
class _Kind:
    """A kind of figure: all of it in one section.

    Attributes:
        heading: of the section.
        what: it is called in a sentence.
        drawn: the figures and the variants without usable data.
        special: few experiments have it, hence nothing is said where it is absent.
    """

    heading: str
    what: str
    drawn: tuple[list[Figure], list[str]]
    special: bool = False


def figure_sections(rows: Sequence[Row]) -> Iterator[Html]:
    """The sections, below buttons that show and hide variants in all of them."""
    yield from remarks(rows)
    yield from _section(_Kind("Curves over what was varied", "sweep", sweeps(rows), special=True))
    yield from _section(_Kind("Size and error", "frontier", frontiers(rows), special=True))
    yield from findings(rows)
    silent = [row.name for row in rows if not any(result.history for result in row.results)]
    kinds = [
        _Kind("Training", "training curves", (curves(rows), silent)),
        _Kind("Convergence", "convergence", convergence(rows), special=True),
        _Kind("Drift of posterior scales", "drift", drift(rows), special=True),
        _Kind("Calibration", "reliability", reliability(rows)),
        _Kind("Predictive intervals", "interval calibration", intervals(rows)),
        _Kind("Foreign inputs", "histograms of foreign inputs", ood(rows)),
    ]
    drawn = {kind.what for kind in kinds if kind.drawn[0]}
    if drawn:
        yield legend([row.name for row in rows], "Variants shown in the figures")
    for kind in kinds:
        yield from _section(kind)
    other = {"reliability": "interval calibration", "interval calibration": "reliability"}
    usual = [kind.what for kind in kinds if not kind.special]
    absent = [what for what in usual if what not in drawn and other.get(what) not in drawn]
    if absent:
        yield el("p", f"Not in these files, hence not shown: {', '.join(absent)}.", class_="note")
    yield from gain_table(rows)
    yield from sheets(rows)
    yield from sparsity_table(rows)
    yield from compressions(rows)
    yield from gradient_tables(rows)
    yield from spectra(rows)
    yield from heat_maps(rows)


def remarks(rows: Sequence[Row]) -> Iterator[Html]:
    """What the files say about themselves, each sentence once."""
    said = [value for row in rows for _, value in told(row.results, "note")]
    for sentence in dict.fromkeys(one for one in said if isinstance(one, str) and one):
        yield el("p", sentence, class_="note")


def _section(kind: _Kind) -> Iterator[Html]:
    figures, missing = kind.drawn
    if figures or (kind.special and missing):
        yield el("h3", kind.heading)
    if figures:
        keys = _KEYS.get(kind.what)
        yield el("p", *keys, class_="note keys") if keys else Html()
        yield el("div", *(one.html() for one in figures), class_=f"figures {figures[0].size}")
    if missing and (figures or kind.special):
        yield el("p", f"Without usable data: {', '.join(missing)}.", class_="note")


_KEYS: dict[str, tuple[Html | str, ...]] = {
    "training curves": (
        el("span", "validation", class_="key thick"),
        el("span", "training", class_="key thin"),
        "Mean over seeds.",
    ),
    "convergence": (
        el("span", "mean over seeds", class_="key thick"),
        el("span", "one seed", class_="key thin"),
        "Seconds are comparable only between runs on the same idle machine.",
    ),
    "sweep": (
        el("span", "ours, mean over seeds", class_="key thick"),
        "Dotted: published, or exact where there is a closed form.",
    ),
    "drift": ("Mean of the standard deviations σ of a layer during training. Mean over seeds.",),
    "histograms of foreign inputs": (
        el("span", "test inputs", class_="key inside"),
        el("span", "inputs from another data set", class_="key outside"),
        "A score that tells them apart has little overlap (AUROC near 1).",
    ),
}
