"""Whether variants differ by more than the noise between seeds: differences to the first, seed by seed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiments.report.columns import COLUMNS, Column
from experiments.report.markup import Html, el, scrolling
from experiments.report.results import Row, Table
from experiments.report.values import fixed, mean_and_error

SCORES = ("log_likelihood", "elbo")  # of models whose differences are small and matter
# two-sided 95 % quantiles of Student's t for 2, 3, ... seeds; 2 beyond
QUANTILES = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Gain:
    """A variant's score minus that of the first variant, over the seeds that both have.

    Attributes:
        variant: its name.
        score: heading of the score.
        mean: of the differences; above 0 is better.
        error: their standard error; None for one seed.
        seeds: how many both have.
    """

    variant: str
    score: str
    mean: float
    error: float | None
    seeds: int

    @property
    def verdict(self) -> str:
        """In words.

        Examples:
            >>> Gain("b", "ELBO", 0.5, 0.1, 3).verdict
            'better by more than the noise'
            >>> Gain("b", "ELBO", 0.3, 0.1, 3).verdict
            'within the noise'
        """
        if self.error is None:
            return "not known from one seed"
        quantile = QUANTILES[self.seeds - 2] if self.seeds - 2 < len(QUANTILES) else 2.0
        if abs(self.mean) <= quantile * self.error:
            return "within the noise"
        return f"{'better' if self.mean > 0 else 'worse'} by more than the noise"

    def __str__(self) -> str:
        """Difference ± error."""
        size = f"{self.mean:+.2f}".replace("-", "−")
        return size if self.error is None else f"{size} ± {fixed(self.error, 2)}"


def gains(rows: Sequence[Row]) -> list[Gain]:
    """Differences of every later variant to the first; empty if there are none to tell.

    Examples:
        >>> from experiments.report.results import Result, compare
        >>> runs = [Result("e", v, s, metrics={"elbo": -90 + e + s}) for v, e in [("a", 0), ("b", 1)]
        ...         for s in (0, 1)]
        >>> [str(one) for one in gains(compare(runs).groups[0].rows)]
        ['+1.00 ± 0.00']
    """
    real = [row for row in rows if not row.smoke]
    if len(real) < 2:
        return []
    found = []
    for row in real[1:]:
        for key in SCORES:
            first, own = _by_seed(real[0], key), _by_seed(row, key)
            common = [own[seed] - first[seed] for seed in own if seed in first]
            if common:
                mean, error = mean_and_error(common)
                found.append(Gain(row.name, _column(key).label, mean, error, len(common)))
    return found


def gain_table(rows: Sequence[Row]) -> Iterator[Html]:
    """A section with the differences; nothing if there are none."""
    found = gains(rows)
    if not found:
        return
    yield el("h3", f"Differences to {rows[0].name}")
    yield el("p", _TEXT, class_="note")
    head = [el("th", word, scope="col") for word in ("variant", "score", "difference", "verdict")]
    body = [
        el(
            "tr",
            el("th", one.variant, scope="row"),
            el("td", one.score),
            el("td", str(one), class_="number"),
            el("td", one.verdict),
        )
        for one in found
    ]
    table = el("table", el("thead", el("tr", *head)), el("tbody", *body), class_="comparison")
    yield scrolling(table, f"Differences to {rows[0].name}")


def gain_text(table: Table) -> str:
    """The differences of every experiment as Markdown; empty if there are none."""
    parts = []
    for group in table.groups:
        found = gains(group.rows)
        if found:
            first = next(row.name for row in group.rows if not row.smoke)
            lines = [f"{group.experiment}, differences to {first}. {_TEXT}", ""]
            lines += ["| variant | score | difference | verdict |", "| --- | --- | ---: | --- |"]
            lines += [f"| {g.variant} | {g.score} | {g} | {g.verdict} |" for g in found]
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


_TEXT = (
    "Seed by seed, in nats per example; ± is the standard error over seeds, and the noise its 95 % "
    "interval by Student's t."
)


def _by_seed(row: Row, key: str) -> Mapping[int, float]:
    return {result.seed: result.metrics[key] for result in row.results if key in result.metrics}


def _column(key: str) -> Column:
    return next(column for column in COLUMNS if column.key == key)
