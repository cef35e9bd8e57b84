"""The UCI benchmark on one page: likelihoods and errors of all tables, beside the published ones."""

from collections.abc import Callable, Mapping, Sequence

from experiments import published
from experiments.report import Result
from experiments.report.text_tables import markdown_grid

METHODS = ("VI", "PBP", "Dropout", "VMG")  # of the published ones that are log-likelihoods
COLUMNS = published.table("radial_directional", "uci")
RERUNS = published.table("uci_reruns", "log_likelihood")
RERUN_ERRORS = published.table("uci_reruns", "rmse")
Values = Mapping[str, Sequence[float | None]]  # by table: value and standard error
Show = Callable[[str, float, float | None], str]
ORDER = (
    *("plain", "ensemble-5", "mc-dropout", "mean-field", "k-tied-2", "k-tied-2-mixture"),
    *("matrix-normal", "radial-row", "radial-double", "radial-double-published"),
)
_OURS = "Test log-likelihood, nats per example; **bold**: above VI, PBP, dropout and VMG"
_AUDIT = "The audit: a mean-field network by the paper's public estimator, and by an honest one"


def uci_tables(results: Sequence[Result]) -> str:
    """Six tables in Markdown from the result files of `kasuri run uci/...`."""
    tables = sorted({_table(run) for run in results})
    present = {run.variant for run in results}
    variants = [variant for variant in ORDER if variant in present]
    likelihoods = {variant: _scores(results, variant, "nll", -1) for variant in variants}
    theirs = {method: _published(method) for method in METHODS}
    errors = {variant: _scores(results, variant, "rmse") for variant in variants}
    return "\n\n".join(
        (
            _OURS,
            _grid(tables, likelihoods | theirs, _bold_if_best),
            _summary(results, likelihoods),
            "Root mean squared error, in the unit of the target",
            _grid(tables, errors, _error),
            "Log-likelihoods in public repositories, for comparison",
            _grid(tables, RERUNS, _likelihood),
            "Root mean squared errors in public repositories",
            _grid(tables, RERUN_ERRORS, _error),
            _AUDIT,
            _audit(results),
        )
    )


def _table(run: Result) -> str:
    return run.experiment.removeprefix("uci/")


def _scores(results: Sequence[Result], variant: str, key: str, sign: int = 1) -> Values:
    return {
        _table(run): (sign * run.metrics[key], run.metrics.get(f"{key}_sem"))
        for run in results
        if run.variant == variant
    }


def _published(method: str) -> Values:
    return {table: values[method] for table, values in COLUMNS.items()}


def _grid(tables: Sequence[str], columns: Mapping[str, Values], show: Show) -> str:
    return markdown_grid([["", *columns], *_rows(tables, columns, show)])


def _rows(tables: Sequence[str], columns: Mapping[str, Values], show: Show) -> list[list[str]]:
    """A row for each table; what is not known is empty."""
    rows = []
    for table in tables:
        cells = [values.get(table, (None, None)) for values in columns.values()]
        shown = ["" if value is None else show(table, value, error) for value, error in cells]
        rows.append([table, *shown])
    return rows


def _likelihood(table: str, value: float, error: float | None) -> str:
    return f"{value:.2f}" + ("" if error is None else f" ± {error:.2f}")


def _bold_if_best(table: str, value: float, error: float | None) -> str:
    shown = _likelihood(table, value, error)
    return f"**{shown}**" if value > _best(table) else shown


def _error(table: str, value: float, error: float | None) -> str:
    digits = 5 if value < 0.01 else 3 if value < 1 else 2
    return "" if error is None else f"{value:.{digits}f} ± {error:.{digits}f}"


def _best(table: str) -> float:
    """The highest of the published log-likelihoods that are ones."""
    return max(COLUMNS[table][method][0] for method in METHODS)


def _summary(results: Sequence[Result], likelihoods: Mapping[str, Values]) -> str:
    head = ["", "tables run", "all four beaten", "by more than its standard error"]
    lines = [[*head, "minutes, all tables"]]
    for variant, values in likelihoods.items():
        leads = [(value - _best(table)) / error for table, (value, error) in values.items()]
        seconds = [run.seconds.get("total", 0.0) for run in results if run.variant == variant]
        beaten = [sum(lead > by for lead in leads) for by in (0, 1)]
        lines.append([variant, *map(str, (len(leads), *beaten)), f"{sum(seconds) / 60:.0f}"])
    return markdown_grid(lines)


def _audit(results: Sequence[Result]) -> str:
    whole, quick = "mean-field-audited", "mean-field-quick-audited"
    columns = {
        "by the public estimator": _scores(results, whole, "as_published"),
        "RDP as published": _published("RDP"),
        "a quick fit by it": _scores(results, quick, "as_published"),
        "honest": _scores(results, whole, "nll", -1),
        "quick fit, honest": _scores(results, quick, "nll", -1),
    }
    counts = _scores(results, whole, "count")
    rows = _rows(sorted(counts), columns, _likelihood)
    lines = [[table, f"{counts[table][0]:.0f}", *cells] for table, *cells in rows]
    return markdown_grid([["", "test points", *columns], *lines])
