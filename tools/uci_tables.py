"""The UCI benchmark on one page: likelihoods and errors of all tables, beside the published ones."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from experiments import published
from experiments.report import Result
from experiments.report.text_tables import markdown_grid

METHODS = ("VI", "PBP", "Dropout", "VMG")  # of the published ones that are log-likelihoods
COLUMNS = published.table("radial_directional", "uci")
RERUNS = published.table("uci_reruns", "log_likelihood")
RERUN_ERRORS = published.table("uci_reruns", "rmse")
Runs = Mapping[str, Mapping[str, Result]]  # by table, by variant
Cell = Callable[[str], str]  # of a table
ORDER = (
    *("plain", "ensemble-5", "mc-dropout", "mean-field", "k-tied-2", "k-tied-2-mixture"),
    *("matrix-normal", "radial-row", "radial-double", "radial-double-published"),
)
_OURS = "Test log-likelihood, nats per example; **bold**: above VI, PBP, dropout and VMG"
_AUDIT = "The audit: a mean-field network by the paper's public estimator, and by an honest one"


def uci_tables(results: Sequence[Result]) -> str:
    """Six tables in Markdown from the result files of `kasuri run uci/...`."""
    runs: dict[str, dict[str, Result]] = {}
    for run in results:
        runs.setdefault(_table(run), {})[run.variant] = run
    present = {run.variant for run in results}
    variants = [variant for variant in ORDER if variant in present]
    likelihoods = {v: partial(_ours, runs, v, _likelihood) for v in variants}
    theirs = {m: partial(_published, m) for m in METHODS}
    errors = {v: partial(_ours, runs, v, _error) for v in variants}
    reruns = {m: partial(_rerun, m) for m in RERUNS}
    rerun_errors = {m: partial(_rerun_error, m) for m in RERUN_ERRORS}
    return "\n\n".join(
        (
            _OURS,
            _grid(sorted(runs), likelihoods | theirs),
            _summary(runs, variants),
            "Root mean squared error, in the unit of the target",
            _grid(sorted(runs), errors),
            "Log-likelihoods in public repositories, for comparison",
            _grid(sorted(runs), reruns),
            "Root mean squared errors in public repositories",
            _grid(sorted(runs), rerun_errors),
            _AUDIT,
            _audit(runs),
        )
    )


def _grid(tables: Sequence[str], columns: Mapping[str, Cell]) -> str:
    rows = [[table, *(cell(table) for cell in columns.values())] for table in tables]
    return markdown_grid([["", *columns], *rows])


def _table(run: Result) -> str:
    return run.experiment.removeprefix("uci/")


def _ours(runs: Runs, variant: str, show: Callable[[Result], str], table: str) -> str:
    return show(runs[table][variant]) if variant in runs[table] else ""


def _likelihood(run: Result) -> str:
    shown = _score(run, "nll", -1)
    return f"**{shown}**" if -run.metrics["nll"] > _best(_table(run)) else shown


def _score(run: Result, key: str, sign: int = 1) -> str:
    return f"{sign * run.metrics[key]:.2f} ± {run.metrics[f'{key}_sem']:.2f}"


def _error(run: Result) -> str:
    return _rmse(run.metrics["rmse"], run.metrics["rmse_sem"])


def _rmse(value: float, error: float) -> str:
    digits = 5 if value < 0.01 else 3 if value < 1 else 2
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def _best(table: str) -> float:
    """The highest of the published log-likelihoods that are ones."""
    return max(COLUMNS[table][method][0] for method in METHODS)


def _published(method: str, table: str) -> str:
    value, error = COLUMNS[table][method]
    return f"{value:.2f} ± {error:.2f}"


def _rerun(method: str, table: str) -> str:
    value, error = RERUNS[method].get(table, (None, None))
    return "" if value is None else f"{value:.2f}" + ("" if error is None else f" ± {error:.2f}")


def _rerun_error(method: str, table: str) -> str:
    value, error = RERUN_ERRORS[method].get(table, (None, None))
    return "" if value is None or error is None else _rmse(value, error)


def _summary(runs: Runs, variants: Sequence[str]) -> str:
    head = ["", "tables run", "all four beaten", "by more than its standard error"]
    lines = [[*head, "minutes, all tables"]]
    for variant in variants:
        own = {table: rows[variant] for table, rows in runs.items() if variant in rows}
        leads = [
            (-run.metrics["nll"] - _best(table)) / run.metrics["nll_sem"]
            for table, run in own.items()
        ]
        minutes = sum(run.seconds.get("total", 0.0) for run in own.values()) / 60
        beaten = [sum(lead > by for lead in leads) for by in (0, 1)]
        lines.append([variant, *map(str, (len(own), *beaten)), f"{minutes:.0f}"])
    return markdown_grid(lines)


def _audit(runs: Runs) -> str:
    public, honest = partial(_score, key="as_published"), partial(_score, key="nll", sign=-1)
    whole, quick = "mean-field-audited", "mean-field-quick-audited"
    columns = {
        "test points": partial(_ours, runs, whole, lambda run: f"{run.metrics['count']:.0f}"),
        "by the public estimator": partial(_ours, runs, whole, public),
        "RDP as published": partial(_published, "RDP"),
        "a quick fit by it": partial(_ours, runs, quick, public),
        "honest": partial(_ours, runs, whole, honest),
        "quick fit, honest": partial(_ours, runs, quick, honest),
    }
    return _grid([table for table in sorted(runs) if whole in runs[table]], columns)
