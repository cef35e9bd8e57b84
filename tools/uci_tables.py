"""The UCI benchmark on one page: likelihoods and errors of all tables, beside the published ones."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.markdown import markdown
from weft.experiments import uci_published as published
from weft.report import read
from weft.report.results import Result

Scores = Mapping[str, Mapping[str, Result]]  # by table, by variant


def uci_tables(folder: Path) -> str:
    """Three tables in Markdown from the result files of `weft run uci/...`."""
    found, problems = read(folder)
    if problems or not found:
        raise ValueError(f"{folder}: {problems or 'no result files'}")
    scores: dict[str, dict[str, Result]] = {}
    for one in found:
        scores.setdefault(one.experiment.removeprefix("uci/"), {})[one.variant] = one
    variants = [one for one in _in_order(found) if one != "mean-field-audited"]
    return "\n\n".join(
        (
            "Test log-likelihood, nats per example; **bold**: above VI, PBP, dropout and VMG",
            _table(scores, variants, _likelihood, published.METHODS, _published),
            _summary(scores, variants),
            "Root mean squared error, in the unit of the target",
            _table(scores, variants, _error, (), _published),
            "Log-likelihoods in public repositories, for comparison",
            _table(scores, [], _likelihood, published.RERUN_METHODS, _rerun),
            "The audit: a mean-field network by the paper's public estimator, and by an honest one",
            _audit(scores),
        )
    )


def _in_order(found: Sequence[Result]) -> list[str]:
    from weft.experiments.uci import EXPERIMENTS

    present = {one.variant for one in found}
    return [one for one in dict.fromkeys(row.variant for row in EXPERIMENTS) if one in present]


def _likelihood(one: Result) -> str:
    value, error = -one.metrics["nll"], one.metrics["nll_sem"]
    shown = f"{value:.2f} ± {error:.2f}"
    return f"**{shown}**" if value > _best(_name(one)) else shown


def _error(one: Result) -> str:
    value, error = one.metrics["rmse"], one.metrics["rmse_sem"]
    digits = 5 if value < 0.01 else 3 if value < 1 else 2
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def _name(one: Result) -> str:
    return one.experiment.removeprefix("uci/")


def _best(table: str) -> float:
    """The highest of the published log-likelihoods that are ones."""
    return max(published.COLUMNS[table][method][0] for method in published.METHODS)


def _published(table: str, method: str) -> str:
    value, error = published.COLUMNS[table][method]
    return f"{value:.2f} ± {error:.2f}"


def _rerun(table: str, method: str) -> str:
    return f"{published.RERUNS[table][method]:.2f}"


def _table(
    scores: Scores,
    variants: Sequence[str],
    cell: Callable[[Result], str],
    methods: Sequence[str],
    other: Callable[[str, str], str],
) -> str:
    rows = [["", *variants, *methods]]
    for table in sorted(scores):
        ours = [cell(scores[table][one]) if one in scores[table] else "" for one in variants]
        rows.append([table, *ours, *(other(table, method) for method in methods)])
    return markdown(rows)


def _summary(scores: Scores, variants: Sequence[str]) -> str:
    counts = {
        variant: sum(
            -rows[variant].metrics["nll"] > _best(table)
            for table, rows in scores.items()
            if variant in rows
        )
        for variant in variants
    }
    told = ", ".join(f"{name} {count}" for name, count in counts.items())
    return f"Tables on which all four published columns are beaten, of {len(scores)}: {told}."


def _audit(scores: Scores) -> str:
    rows = [["", "test points", "by the public estimator", "RDP as published", "honest"]]
    for table in sorted(scores):
        one = scores[table].get("mean-field-audited")
        if one is None:
            continue
        metrics, (value, error) = one.metrics, published.COLUMNS[table]["RDP"]
        rows.append(
            [
                table,
                f"{metrics['count']:.0f}",
                f"{metrics['as_published']:.2f} ± {metrics['as_published_sem']:.2f}",
                f"{value:.2f} ± {error:.2f}",
                f"{-metrics['nll']:.2f} ± {metrics['nll_sem']:.2f}",
            ]
        )
    return markdown(rows)
