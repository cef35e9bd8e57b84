"""Whether variants differ by more than the noise between seeds: differences to the first, seed by seed."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.report.json_numbers import fixed, mean_and_error
from experiments.report.score_columns import column
from experiments.report.score_tables import ScoreRow

SCORES = ("log_likelihood", "elbo")  # of models whose differences are small and matter
# two-sided 95 % quantiles of Student's t for 2, 3, ... seeds; 2 beyond
QUANTILES = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
HEAD = ("variant", "score", "difference", "verdict")
NOTE = (
    "Seed by seed, in nats per example; ± is the standard error over seeds, and the noise its 95 % "
    "interval by Student's t."
)


@dataclass(frozen=True)
class Gain:
    """A variant's score minus that of another, the first of its experiment, over the seeds that both have.

    Above 0 is better; `error` is the standard error of the mean, None for one seed.
    """

    first: str
    variant: str
    score: str
    mean: float
    error: float | None
    seeds: int

    @property
    def verdict(self) -> str:
        """In words.

        Examples:
            >>> Gain("a", "b", "ELBO", 0.5, 0.1, 3).verdict, Gain("a", "b", "ELBO", 0.3, 0.1, 3).verdict
            ('better by more than the noise', 'within the noise')
        """
        if self.error is None:
            return "not known from one seed"
        quantile = QUANTILES[self.seeds - 2] if self.seeds - 2 < len(QUANTILES) else 2.0
        if abs(self.mean) <= quantile * self.error:
            return "within the noise"
        return f"{'better' if self.mean > 0 else 'worse'} by more than the noise"

    @property
    def line(self) -> list[str]:
        """A row of a table, below `HEAD`."""
        size = f"{self.mean:+.2f}".replace("-", "−")
        error = "" if self.error is None else f" ± {fixed(self.error, 2)}"
        return [self.variant, self.score, size + error, self.verdict]


def gains(rows: Sequence[ScoreRow]) -> list[Gain]:
    """Differences of every later variant to the first; smoke runs do not count."""
    found = []
    real = [row for row in rows if not row.smoke]
    for row in real[1:]:
        for key in SCORES:
            first = {run.seed: run.metrics[key] for run in real[0].results if key in run.metrics}
            own = {run.seed: run.metrics[key] for run in row.results if key in run.metrics}
            differences = [own[seed] - first[seed] for seed in own if seed in first]
            if differences:
                mean, error = mean_and_error(differences)
                names = real[0].name, row.name, column(key).label
                found.append(Gain(*names, mean, error, len(differences)))
    return found
