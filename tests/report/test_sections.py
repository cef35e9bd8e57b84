"""What the figures and tables of the page draw, against numbers worked out by hand."""

import pytest

from experiments.report import Result, compare
from experiments.report.calibration import intervals, reliability
from experiments.report.posteriors import layers, spectra
from experiments.report.sizes import frontiers
from experiments.report.sweeps import pooled, sweeps
from experiments.report.training import convergence


def rows(*figures, variant="v", metrics=None):
    """The row of a variant whose seeds have these figures."""
    runs = [
        Result("e", variant, seed, figures=one, metrics=metrics or {})
        for seed, one in enumerate(figures)
    ]
    return compare(runs)[0].rows


def lines(figure):
    return {line.name: tuple(map(list, zip(*line.points, strict=True))) for line in figure.series}


def elbo(values):
    return {"convergence": {"step": list(range(len(values))), "neg_elbo": values}}


def test_convergence_is_the_mean_over_seeds():
    (figure,) = convergence(rows(elbo([4, 2]), elbo([2, 1, 0]))).figures
    assert lines(figure) == {"v": ([0, 1, 2], [3, 1.5, 0])}
    assert figure.series[0].entry == 0


@pytest.mark.parametrize(
    ("values", "log"), [([20, 1], True), ([9, 1], False), ([20, -1], False), ([20, 0], False)]
)
def test_the_axis_is_logarithmic_for_positive_numbers_of_different_sizes(values, log):
    figure = convergence(rows(elbo(values))).figures[0]
    assert (figure.log, "log scale" in figure.title) == (log, log)


def test_reliability_is_pooled_by_counts_and_leaves_out_empty_bins():
    first = {"confidence": [0.0, 0.5, 0.9], "accuracy": [None, 0.4, 0.8], "count": [0, 1, 3]}
    second = {"confidence": [0.0, 0.7, 0.8], "accuracy": [0.0, 0.8, 1.0], "count": [0, 3, 1]}
    (figure,) = reliability(rows({"reliability": first}, {"reliability": second})).figures
    assert lines(figure)["v"][0] == pytest.approx([0.65, 0.875])
    assert lines(figure)["v"][1] == pytest.approx([0.7, 0.85])


def test_intervals_are_averaged_over_the_seeds_that_have_a_level():
    first = {"nominal": [0.5, 0.9], "observed": [0.4, 0.8]}
    second = {"nominal": [0.9], "observed": [0.9]}
    (figure,) = intervals(rows({"intervals": first}, {"intervals": second})).figures
    assert lines(figure)["v"] == ([0.5, 0.9], pytest.approx([0.4, 0.85]))


def test_spectrum_has_its_baselines_and_the_constant():
    scale = {"share": [0.9, 0.1], "shuffled": [0.7, 0.3], "centred": [0.6, 0.4], "constant": 0.5}
    other = scale | {"share": [0.7, 0.3]}
    mean = {"share": [0.75, 0.25 - 1e-9, 1e-9]}
    stored = [{"spectrum": [{"layer": "a", "scale": s, "mean": mean}]} for s in (scale, other)]
    (figure,) = spectra(rows(*stored)).parts[0].figures
    drawn = lines(figure)
    assert drawn["σ"] == ([1, 2], pytest.approx([80, 20]))
    assert drawn["constant matrix"][1] == [50] * 10
    assert drawn["μ"][1] == [75, pytest.approx(25)], "rounding errors are not drawn"
    assert set(drawn) == {"σ", "constant matrix", "shuffled σ", "centred σ", "μ"}
    assert figure.log
    assert "σ 80.00 %" in figure.caption


def test_layers_are_a_table_and_histograms():
    histogram = {"edges": [0, 1, 2], "counts": [4, 2]}
    entry = {"name": "0.weight", "shape": [2, 3], "kl": 1.5, "mean": histogram}
    section = layers(*rows({"layers": [entry]}))
    (table,) = section.tables
    assert table.rows == [["0.weight, 2 × 3", "–", "1.5", "–", "–", "–"]]
    (figure,) = section.figures
    assert lines(figure) == {"0.weight, 2 × 3": ([0, 1, 1, 2], [1, 1, 0.5, 0.5])}


def network(weights, error, **changed):
    return {"weights": weights, "flops": 10 * weights, "error": error} | changed


def test_every_seed_has_its_line_of_networks_that_none_beats():
    rival = {"BC": network(60, 0.01)}
    first = {"points": [network(100, 0.01), network(50, 0.02)], "published": rival}
    second = {"points": [network(80, 0.005), network(90, 0.006)]}
    weights, flops = frontiers(rows({"frontier": first}, {"frontier": second})).figures
    ours, again = (line.points for line in weights.series)
    assert ours == [(50, 2), (100, 1)], "no seed is chosen by its test error"
    assert again == [(80, 0.5)], "smaller and better than its other point"
    assert weights.crosses == {"BC": (60, 1)}
    assert [len(line.points) for line in flops.series] == [2, 1]


def point(tau, seed=0, series="mean-field", accuracy=0.9, **changed):
    sweep = {
        "x": "tau",
        "value": tau,
        "series": series,
        "curves": ["accuracy", "kl"],
        "marks": {"η = 1": 1.3},
        "beside": {"kl": 4.0},
    }
    scores = {"accuracy": accuracy, "kl": 5.0}
    paper, figures = {"accuracy": (0.5, None)}, {"sweep": sweep | changed}
    name = f"{series}-{tau}"
    return Result("e", name, seed, metrics=scores, published=paper, figures=figures)


def test_points_of_variants_become_curves_and_seeds_are_averaged():
    runs = [point(0.1), point(0.1, seed=1, accuracy=0.8), point(10.0)]
    found = pooled(compare(runs)[0].rows)
    curve = found.scores["accuracy"]["mean-field"]
    assert curve.measured == {0.1: [0.9, 0.8], 10.0: [0.9]}
    assert curve.means() == {0.1: pytest.approx(0.85), 10.0: 0.9}
    assert curve.beside == {0.1: 0.5, 10.0: 0.5}
    assert found.scores["kl"]["mean-field"].beside == {0.1: 4.0, 10.0: 4.0}
    assert found.marks == {"η = 1": 1.3}


def test_sweeps_draw_ours_the_published_and_the_mark():
    runs = [point(tau, series=series) for series in ("a", "b") for tau in (0.1, 10.0)]
    accuracy, kl = sweeps(compare(runs)[0].rows).figures
    assert (accuracy.title, kl.title) == ("Accuracy (%)", "KL in nats")
    drawn = lines(accuracy)
    assert list(drawn) == ["a", "a, published or exact", "b", "b, published or exact"]
    assert drawn["a"] == ([0.1, 10], [90, 90])
    assert drawn["a, published or exact"][1] == [50, 50]
    assert (accuracy.marks, accuracy.log_x) == ({"η = 1": 1.3}, True)
