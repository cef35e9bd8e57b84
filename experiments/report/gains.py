"""Whether variants differ by more than the noise between seeds: differences to the first, seed by seed."""

from collections.abc import Sequence

from experiments.report.json_numbers import fixed, mean_and_error
from experiments.report.score_columns import column
from experiments.report.score_tables import ScoreRow
from experiments.report.sections import Table

SCORES = ("log_likelihood", "elbo")  # of models whose differences are small and matter
# two-sided 95 % quantiles of Student's t for 2, 3, ... seeds; 2 beyond
QUANTILES = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
NOTE = (
    "Seed by seed, in nats per example; ± is the standard error over seeds, and the noise its 95 % "
    "interval by Student's t."
)


def gains(rows: Sequence[ScoreRow]) -> Table | None:
    """Differences of every later variant to the first, above 0 if it is better.

    Over the seeds that both have; smoke runs do not count. None if nothing can be compared.
    """
    lines = []
    real = [row for row in rows if not row.smoke]
    for row in real[1:]:
        for key in SCORES:
            base, own = _by_seed(real[0], key), _by_seed(row, key)
            differences = [own[seed] - base[seed] for seed in own if seed in base]
            if differences:
                mean, error = mean_and_error(differences)
                size = f"{mean:+.2f}".replace("-", "−")
                size += "" if error is None else f" ± {fixed(error, 2)}"
                words = verdict(mean, error, len(differences))
                lines.append([row.name, column(key).label, size, words])
    head = ("variant", "score", "difference", "verdict")
    return Table(f"differences to {real[0].name}", head, lines) if lines else None


def _by_seed(row: ScoreRow, key: str) -> dict[int, float]:
    return {run.seed: run.metrics[key] for run in row.results if key in run.metrics}


def verdict(mean: float, error: float | None, seeds: int) -> str:
    """A difference in words.

    Examples:
        >>> verdict(0.5, 0.1, 3), verdict(0.3, 0.1, 3)
        ('better by more than the noise', 'within the noise')
    """
    if error is None:
        return "not known from one seed"
    quantile = QUANTILES[seeds - 2] if seeds - 2 < len(QUANTILES) else 2.0
    if abs(mean) <= quantile * error:
        return "within the noise"
    return f"{'better' if mean > 0 else 'worse'} by more than the noise"
