"""Experiments that vary one quantity, such as the temperature: a row for each of its values."""

from collections.abc import Mapping
from pathlib import Path

from experiments.report import compare, read
from experiments.report.sweeps import AXES, Curve, column, named, pooled
from experiments.report.values import short
from tools.markdown import markdown


def sweep_tables(folder: Path) -> str:
    """For each experiment a table of all scores, or with several series a table of series for each score.

    Best values along a series are bold. Behind a stroke: what is published, or exact.
    """
    found, problems = read(folder)
    if problems or not found:
        raise ValueError(f"{folder}: {problems or 'no result files'}")
    parts = []
    for group in compare(found).groups:
        studies, missing = pooled(group.rows)
        if missing or not studies:
            names = missing or [row.name for row in group.rows]
            raise ValueError(f"{group.experiment}: {names} do not say what was varied")
        parts.append(f"### {group.experiment}: {group.title}")
        for x, study in studies.items():
            parts += _tables(AXES.get(x, x), study.scores)
    return "\n\n".join(parts)


def _tables(x: str, scores: Mapping[str, Mapping[str, Curve]]) -> list[str]:
    names = list(dict.fromkeys(name for series in scores.values() for name in series))
    if len(names) == 1:
        return [_table(x, {named(score)[0]: (score, s[names[0]]) for score, s in scores.items()})]
    parts = []
    for score, series in scores.items():
        parts += [named(score)[0], _table(x, {name: (score, s) for name, s in series.items()})]
    return parts


def _table(x: str, columns: Mapping[str, tuple[str, Curve]]) -> str:
    places = sorted({place for _, curve in columns.values() for place in curve.measured})
    best = {name: _best(*column) for name, column in columns.items()}
    rows = [[x, *columns]]
    for place in places:
        cells = [
            _cell(score, curve, place, place in best[name])
            for name, (score, curve) in columns.items()
        ]
        rows.append([f"{place:,g}", *cells])
    return markdown(rows)


def _best(score: str, curve: Curve) -> set[float]:
    """Where the score is best; nowhere if it has no better direction."""
    known = column(score)
    if known.better == "neither" or not curve.measured:
        return set()
    losses = {x: known.loss(sum(v) / len(v)) for x, v in curve.measured.items()}
    least = min(losses.values())
    return {x for x, loss in losses.items() if loss == least}


def _cell(score: str, curve: Curve, place: float, best: bool) -> str:
    if place not in curve.measured:
        return ""
    factor = named(score)[1]
    values = curve.measured[place]
    told = short(factor * sum(values) / len(values))
    told = f"**{told}**" if best else told
    beside = curve.beside.get(place)
    return told if beside is None else f"{told} / {short(factor * beside)}"
