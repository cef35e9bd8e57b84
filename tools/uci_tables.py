"""The UCI benchmark on one page: likelihoods and errors of all tables, beside the published ones."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments import published
from experiments.report import read
from experiments.report.results import Result
from tools.markdown import markdown

METHODS = ("VI", "PBP", "Dropout", "VMG")  # of the published ones that are log-likelihoods
COLUMNS = published.table("radial_directional", "uci")
RERUNS = published.table("uci_reruns", "log_likelihood")
RERUN_ERRORS = published.table("uci_reruns", "rmse")
Scores = Mapping[str, Mapping[str, Result]]  # by table, by variant


def uci_tables(folder: Path) -> str:
    """Three tables in Markdown from the result files of `kasuri run uci/...`."""
    found, problems = read(folder)
    if problems or not found:
        raise ValueError(f"{folder}: {problems or 'no result files'}")
    scores: dict[str, dict[str, Result]] = {}
    for one in found:
        scores.setdefault(one.experiment.removeprefix("uci/"), {})[one.variant] = one
    variants = [one for one in _in_order(found) if not one.endswith("-audited")]
    return "\n\n".join(
        (
            "Test log-likelihood, nats per example; **bold**: above VI, PBP, dropout and VMG",
            _table(scores, variants, _likelihood, METHODS, _published),
            _summary(scores, variants),
            "Root mean squared error, in the unit of the target",
            _table(scores, variants, _error, (), _published),
            "Log-likelihoods in public repositories, for comparison",
            _table(scores, [], _likelihood, tuple(RERUNS), _rerun),
            "Root mean squared errors in public repositories",
            _table(scores, [], _error, tuple(RERUN_ERRORS), _rerun_error),
            "The audit: a mean-field network by the paper's public estimator, and by an honest one",
            _audit(scores),
        )
    )


def _in_order(found: Sequence[Result]) -> list[str]:
    from experiments.uci import EXPERIMENTS

    present = {one.variant for one in found}
    return [one for one in dict.fromkeys(row.variant for row in EXPERIMENTS) if one in present]


def _likelihood(one: Result) -> str:
    value, error = -one.metrics["nll"], one.metrics["nll_sem"]
    shown = f"{value:.2f} ± {error:.2f}"
    return f"**{shown}**" if value > _best(_name(one)) else shown


def _error(one: Result) -> str:
    return _rooted(one.metrics["rmse"], one.metrics["rmse_sem"])


def _rooted(value: float, error: float) -> str:
    digits = 5 if value < 0.01 else 3 if value < 1 else 2
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def _name(one: Result) -> str:
    return one.experiment.removeprefix("uci/")


def _best(table: str) -> float:
    """The highest of the published log-likelihoods that are ones."""
    return max(COLUMNS[table][method][0] for method in METHODS)


def _published(table: str, method: str) -> str:
    value, error = COLUMNS[table][method]
    return f"{value:.2f} ± {error:.2f}"


def _rerun(table: str, method: str) -> str:
    found = RERUNS[method].get(table)
    if found is None:
        return ""
    value, error = found
    return f"{value:.2f}" if error is None else f"{value:.2f} ± {error:.2f}"


def _rerun_error(table: str, method: str) -> str:
    value, error = RERUN_ERRORS[method].get(table, (None, None))
    return "" if value is None or error is None else _rooted(value, error)


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
    told = []
    for variant in variants:
        run = {table: rows[variant].metrics for table, rows in scores.items() if variant in rows}
        leads = [(-m["nll"] - _best(table)) / m["nll_sem"] for table, m in run.items()]
        minutes = (
            sum(
                rows[variant].seconds.get("total", 0.0)
                for rows in scores.values()
                if variant in rows
            )
            / 60
        )
        told.append(
            [
                variant,
                f"{len(run)}",
                f"{sum(lead > 0 for lead in leads)}",
                f"{sum(lead > 1 for lead in leads)}",
                f"{minutes:.0f}",
            ]
        )
    head = [
        "",
        "tables run",
        "all four beaten",
        "by more than its standard error",
        "minutes, all tables",
    ]
    return markdown([head, *told])


def _audit(scores: Scores) -> str:
    rows = [
        [
            "",
            "test points",
            "by the public estimator",
            "RDP as published",
            "a quick fit by it",
            "honest",
            "quick fit, honest",
        ]
    ]
    for table in sorted(scores):
        one = scores[table].get("mean-field-audited")
        if one is None:
            continue
        quick = scores[table].get("mean-field-quick-audited")
        value, error = COLUMNS[table]["RDP"]
        rows.append(
            [
                table,
                f"{one.metrics['count']:.0f}",
                _with_error(one, "as_published"),
                f"{value:.2f} ± {error:.2f}",
                _with_error(quick, "as_published"),
                _with_error(one, "nll", -1),
                _with_error(quick, "nll", -1),
            ]
        )
    return markdown(rows)


def _with_error(one: Result | None, key: str, sign: int = 1) -> str:
    if one is None:
        return ""
    return f"{sign * one.metrics[key]:.2f} ± {one.metrics[f'{key}_sem']:.2f}"
