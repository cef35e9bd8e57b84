"""Tables and pictures of docs/training.md: steps to a bound, noise of gradients, choice of a temperature."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from experiments import published
from experiments.report import Result
from experiments.report.panels import Panel, Series, mean_by
from experiments.report.text_tables import markdown_grid
from tools.charts import COLOURS, PALETTE, draw

FAMILIES = ("mean-field", "k-tied-1", "k-tied-2", "k-tied-3", "matrix-normal")
LENGTHS = ("490", "980", "2989")
PAPER = published.table("k_tied", "mnist-mlp")
PAPER_CURVE = published.table("k_tied", "convergence")
PAPER_STEPS = 14_700
ESTIMATORS = ("shared", "local", "flipout", "auto")


def _of_seeds(runs: Sequence[Result], key: str) -> tuple[float, float]:
    """Mean over seeds; the standard error over seeds, or over examples if there is one."""
    values = [run.metrics[key] for run in runs]
    if len(values) == 1:
        return values[0], runs[0].metrics.get(f"{key}_sem", 0.0)
    return statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5


def _by_variant(results: Sequence[Result]) -> Mapping[tuple[str, str], list[Result]]:
    grouped: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for run in results:
        grouped[run.experiment, run.variant].append(run)
    return grouped


def steps_table(results: Sequence[Result]) -> str:
    """−ELBO on test data after so many steps in all, a row for each family and kind of input."""
    grouped = _by_variant(results)
    lines = [["inputs", "family", *(f"{length} steps" for length in LENGTHS), "paper, 14,700"]]
    for name, inputs in (("convergence-standardised", "standardised"), ("convergence", "[-1, 1]")):
        for family in (*FAMILIES, "k-tied-2 by Adam"):
            cells = []
            for length in LENGTHS:
                variant = f"{family}-{length}"
                if family.endswith("Adam"):
                    variant = f"k-tied-2-{length}-adam"
                runs = grouped.get((f"natural/{name}", variant), [])
                cells.append(f"{_of_seeds(runs, 'neg_elbo')[0]:.3f}" if runs else "")
            value = PAPER.get(family, {}).get("neg_elbo", (None,))[0]
            if any(cells):
                lines.append([inputs, family, *cells, "" if value is None else f"{value:.3f}"])
    return markdown_grid(lines, words=2)


def noise_table(results: Sequence[Result]) -> str:
    """Noise of a natural step of log σ at rate 1, and milliseconds per gradient, by estimator."""
    lines = [["network and family", *(f"{how}: noise (ms)" for how in ESTIMATORS)]]
    for (experiment, variant), runs in sorted(_by_variant(results).items()):
        # of convolutions the median weight is at its prior, where there is next to no noise
        if experiment == "natural/noise" and variant.startswith("dense"):
            cells = [
                f"{_of_seeds(runs, f'noise_{how}')[0]:.2f} ({_of_seeds(runs, f'milliseconds_{how}')[0]:.0f})"
                for how in ESTIMATORS
            ]
            lines.append([variant.replace("-", ", ", 1), *cells])
    return markdown_grid(lines, words=1)


def temperature_table(results: Sequence[Result]) -> str:
    """Test NLL at the best of nine temperatures and at the one that fit chose, for each data set."""
    grouped = _by_variant(results)
    names = sorted({run.experiment for run in results if "/temperature-" in run.experiment})
    head = [
        "data",
        "best of nine",
        "NLL there",
        "chosen",
        "NLL there",
        "difference",
        "within one error",
    ]
    lines = [head]
    for name in names:
        given = {variant: runs for (where, variant), runs in grouped.items() if where == name}
        auto = given.pop("auto", [])
        if not auto or not given:
            continue
        best = min(given, key=lambda variant: _of_seeds(given[variant], "nll")[0])
        (low, error), (chosen, own) = _of_seeds(given[best], "nll"), _of_seeds(auto, "nll")
        ends = sorted(float(run.history[-1]["temperature"]) for run in auto)
        span = f"{ends[0]:.2g}" if ends[0] == ends[-1] else f"{ends[0]:.2g} to {ends[-1]:.2g}"
        bound = (error**2 + own**2) ** 0.5
        lines.append(
            [
                name.removeprefix("natural/temperature-"),
                best,
                f"{low:.3f} ± {error:.3f}",
                span,
                f"{chosen:.3f} ± {own:.3f}",
                f"{chosen - low:+.3f} ± {bound:.3f}",
                "yes" if chosen - low <= bound else "no",
            ]
        )
    return markdown_grid(lines, words=1)


def convergence_chart(results: Sequence[Result]) -> str:
    """−ELBO by step: natural steps and Adam, ours, and the paper's points."""
    grouped = _by_variant(results)
    wanted = {
        "natural, k = 2, 980 steps": ("natural/convergence", "k-tied-2-980"),
        "natural, mean-field, 980 steps": ("natural/convergence", "mean-field-980"),
        "Adam at 0.003, k = 2, noise per example": ("natural/convergence", "k-tied-2-980-adam"),
        "Adam at 0.0003 as in the paper, k = 2": ("k-tied/convergence", "k-tied-2"),
    }
    series, legend = [], []
    for (title, place), colour in zip(wanted.items(), COLOURS, strict=False):
        runs = grouped.get(place, [])
        curves = [run.figures["convergence"] for run in runs]
        if curves:
            x, y = mean_by((curve["step"], curve["neg_elbo"]) for curve in curves)
            points = [(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True) if a > 0]
            series.append(Series(points, colour, title, dots=""))
            legend.append((title, colour))
    steps = (1000, 5000, 9000)
    paper = [(float(at), float(PAPER_CURVE["k-tied-2"][f"neg_elbo_{at}"][0] or 0)) for at in steps]
    paper.append((float(PAPER_STEPS), float(PAPER["k-tied-2"]["neg_elbo"][0] or 0)))
    series.append(Series(paper, PALETTE["muted"], "paper", dash="2 4", dots="rings"))
    legend.append(("○ paper, k = 2", PALETTE["muted"]))
    panel = Panel("−ELBO, nats per example", "step", series, log=True)
    title = "MNIST, 784-400-400-10, inputs in [-1, 1], T = 1"
    return draw(title, legend, [panel], width=760, height=420)


def temperature_chart(results: Sequence[Result]) -> str:
    """NLL over the temperature, a panel for each data set; rings: what fit chose."""
    grouped = _by_variant(results)
    panels = []
    for name in sorted({run.experiment for run in results if "/temperature-" in run.experiment}):
        given = {
            float(variant): _of_seeds(runs, "nll")[0]
            for (where, variant), runs in grouped.items()
            if where == name and variant != "auto"
        }
        auto = grouped.get((name, "auto"), [])
        chosen = [(float(run.history[-1]["temperature"]), run.metrics["nll"]) for run in auto]
        lines = [
            Series(sorted(given.items()), COLOURS[0], "given"),
            Series(sorted(chosen), COLOURS[1], "chosen", dash="1 9", dots="rings"),
        ]
        panels.append(Panel(name.removeprefix("natural/temperature-"), "T", lines))
    legend = [("● given, mean over seeds", COLOURS[0]), ("○ chosen by fit, each seed", COLOURS[1])]
    return draw("Test NLL by temperature, k = 2", legend, panels, width=520, height=360)
