"""Figures that few experiments have: spectra, maps, convergence, gradients, drift, sparsity."""

import math

import pytest

from experiments.report import Result, compare
from experiments.report.gradients import pooled as pooled_ratios
from experiments.report.heatmaps import parsed as parsed_maps
from experiments.report.sparsities import Left
from experiments.report.sparsities import pooled as pooled_sparsity
from experiments.report.spectra import parsed as parsed_spectrum
from experiments.report.steps import convergence, drift
from tests.report import samples, study

HEADINGS = {
    "spectrum": "Spectra of posterior scales and means",
    "scales": "Maps of posterior scales",
    "convergence": "Convergence",
    "gradient_snr": "Signal to noise of gradients",
    "drift": "Drift of posterior scales",
    "sparsity": "Sparsity",
}


def rows(*figures, variant="v"):
    """The row of a variant whose seeds have these figures."""
    runs = [Result("e", variant, seed, figures=one) for seed, one in enumerate(figures)]
    return compare(runs).groups[0].rows


def runs_with(key, value):
    """A usable run, and one that stores something else under a key."""
    good, other = study.result("mean-field", 0), study.result("k-tied-2", 0)
    other["figures"][key] = value
    return [good, other]


def elbo(values, steps=None, pace=1.0):
    steps = list(range(len(values))) if steps is None else steps
    seconds = [pace * step for step in steps]
    return {"convergence": {"step": steps, "seconds": seconds, "neg_elbo": values}}


def ratio(value, **changed):
    entry = {"step": 1, "layer": "a", "parameter": "loc", "mean": 2 * value, "median": value}
    return entry | {"definition": "d"} | changed


def test_every_section_is_there_and_every_figure_has_words(render):
    shown = render(study.every_result())
    for heading in HEADINGS.values():
        assert heading in shown.all_text, heading
    kinds = [trace["type"] for figure in shown.figures for trace in figure["data"][:1]]
    variants, layers = len(study.VARIANTS), len(study.LAYERS)
    assert kinds.count("heatmap") == variants * layers * 3
    assert kinds.count("scatter") == 2 + layers + variants * layers
    plots = [attrs for _, attrs in shown.elements if attrs.get("class", "").startswith("plot")]
    assert all(p["role"] == "img" and len(p["aria-label"]) > 30 for p in plots)
    assert len({p["aria-label"] for p in plots}) == len(plots)


def test_nothing_is_said_where_nothing_is_stored(render):
    text = render([samples.fashion("k-tied-2", 0)]).all_text
    assert not any(heading in text for heading in HEADINGS.values())
    assert "hence not shown: interval" not in text
    for empty in (None, [], {}):
        for key, heading in HEADINGS.items():
            run = study.result("k-tied-2", 0)
            run["figures"] = {key: empty}
            text = render([run]).all_text
            assert heading not in text
            assert "Without usable data" not in text


@pytest.mark.parametrize("key", study.KEYS)
@pytest.mark.parametrize("junk", [5, "x", True, ["x"], [None, 3], {"step": [1], "neg_elbo": "x"}])
def test_what_cannot_be_used_is_skipped_and_named(render, key, junk):
    text = render(runs_with(key, junk)).all_text
    assert HEADINGS[key] in text
    assert "Without usable data: k-tied-2" in text
    alone = runs_with(key, junk)[1]
    alone["figures"] = {key: junk}
    text = render([alone]).all_text
    assert HEADINGS[key] in text, "the heading says what is unusable"
    assert "Without usable data: k-tied-2" in text


def test_a_variant_without_the_data_is_not_named(render):
    runs = [study.result("mean-field", 0), samples.fashion("plain", 0)]
    runs[1]["experiment"] = runs[0]["experiment"]
    text = render(runs).all_text
    assert "Without usable data: plain" not in text


def test_a_broken_layer_is_named_and_the_others_are_drawn(render):
    run = study.result("mean-field", 0)
    run["figures"]["spectrum"][0]["mean"] = run["figures"]["spectrum"][0]["scale"] = {"share": [2]}
    run["figures"]["scales"][1]["maps"][2]["values"][3] = [1.0]
    run["figures"]["drift"][0]["step"] = [1]
    text = render([run]).all_text
    assert text.count("Without usable data: mean-field (hidden.weight).") == 2
    assert "Without usable data: mean-field (out.weight)." in text


def test_spectrum_has_its_baselines_and_the_constant(render):
    run = study.result("mean-field", 0)
    run["figures"] = {"spectrum": run["figures"]["spectrum"][:1]}
    (figure,) = render([run]).figures
    lines = {trace["name"]: trace for trace in figure["data"]}
    assert set(lines) == {"σ", "μ", "shuffled σ", "centred σ", "constant matrix"}
    stored = run["figures"]["spectrum"][0]["scale"]
    assert lines["σ"]["y"] == pytest.approx([100 * share for share in stored["share"]], rel=1e-4)
    assert lines["σ"]["x"] == list(range(1, 11))
    assert lines["constant matrix"]["y"] == pytest.approx([100 * stored["constant"]] * 2, rel=1e-4)
    assert figure["layout"]["yaxis"]["type"] == "log"


def test_spectrum_without_scales_and_with_rounding_errors(render):
    run = study.result("mean-field", 0)
    share = {"share": [0.75, 0.25, 1e-16, 0.0]}
    run["figures"] = {"spectrum": [{"layer": "a", "scale": None, "mean": share}]}
    shown = render([run])
    (figure,) = shown.figures
    assert [trace["name"] for trace in figure["data"]] == ["μ"]
    assert figure["data"][0]["y"] == [75.0, 25.0, None, None]
    assert "Shares below 0.0001 % are not drawn." in shown.all_text
    assert math.log10(10) - 0.2 < figure["layout"]["yaxis"]["range"][0] < 1


def test_a_baseline_that_cannot_be_used_is_said_below_the_figure(render):
    run = study.result("mean-field", 0)
    run["figures"]["spectrum"][0]["scale"]["centred"] = [float("nan"), 0.1]
    text = render([run]).all_text
    assert text.count("Without usable data: centred σ.") == 1


@pytest.mark.parametrize("share", [[], [-0.1], [1.5], ["x"], None, [float("inf")]])
def test_what_is_no_share_is_no_spectrum(share):
    assert parsed_spectrum({"mean": {"share": share}}) is None


def test_maps_of_a_layer_share_one_range_and_large_ones_are_thinned():
    values = [[float(i * j) for j in range(500)] for i in range(200)]
    entry = {
        "low": 0,
        "high": 9,
        "maps": [{"title": "full", "values": values}],
        "shape": [200, 500],
    }
    maps = parsed_maps(entry)
    ((title, cells),) = maps.maps
    assert title == "full"
    assert (len(cells), len(cells[0])) == (96, 96)
    assert (cells[0][0], cells[-1][-1]) == (0.0, float(f"{199 * 499:.5g}"))
    assert (maps.low, maps.high) == (0, 9)


@pytest.mark.parametrize(
    "changed",
    [
        *({"low": None}, {"high": "x"}, {"low": 3}, {"maps": []}, {"maps": None}),
        *({"maps": [{"values": v}]} for v in ([], [[]], [[None]], [[1], [1, 2]], 5, [5])),
    ],
)
def test_what_is_no_map_is_not_drawn(changed):
    entry = {"low": 0, "high": 2, "maps": [{"title": "full", "values": [[1, None]]}]}
    assert parsed_maps(entry).maps == (("full", [[1.0, None]]),)
    assert parsed_maps(entry | changed) is None


def test_a_map_of_equal_numbers_still_has_a_range():
    for value in (0.0, 0.3):
        maps = parsed_maps({"low": value, "high": value, "maps": [{"values": [[value]]}]})
        assert maps.low < value < maps.high
        assert maps.maps[0][0] == "map 1"


def test_convergence_is_the_mean_over_seeds_above_thin_lines():
    (by_step, by_time), missing = convergence(rows(elbo([4, 2], pace=1), elbo([2, 1], pace=3)))
    assert missing == []
    *thin, mean = by_step.data
    assert [one["name"] for one in thin] == ["v, seed 0", "v, seed 1"]
    assert (mean["name"], mean["x"], mean["y"]) == ("v", [0, 1], [3, 1.5])
    assert all(one["line"]["width"] < mean["line"]["width"] for one in thin)
    assert by_time.data[-1]["x"] == [0, 2], "seconds are averaged too"
    assert {one["meta"]["series"] for one in by_step.data} == {0}


def test_one_seed_has_one_line_and_seeds_without_common_steps_have_their_own():
    (by_step, _), _ = convergence(rows(elbo([4, 2])))
    assert [one["name"] for one in by_step.data] == ["v"]
    (by_step, _), _ = convergence(rows(elbo([4, 2]), elbo([4, 2, 1], steps=[0, 7, 8])))
    assert [one["name"] for one in by_step.data] == ["v, seed 0", "v, seed 1"]
    (by_step, _), _ = convergence(rows(elbo([4, 2]), elbo([2, 1, 0])))
    assert by_step.data[-1]["y"] == [3, 1.5], "the steps that both have"


@pytest.mark.parametrize(
    ("values", "kind"), [([20, 1], "log"), ([9, 1], None), ([20, -1], None), ([20, 0], None)]
)
def test_the_axis_is_logarithmic_for_positive_numbers_of_different_sizes(values, kind):
    (by_step, _), _ = convergence(rows(elbo(values)))
    assert by_step.layout["yaxis"].get("type") == kind
    assert ("log scale" in by_step.title) == (kind == "log")


def test_without_seconds_there_is_no_figure_of_them():
    stored = elbo([4, 2])
    del stored["convergence"]["seconds"]
    figures, missing = convergence(rows(stored))
    assert [figure.title for figure in figures] == ["Validation −ELBO by step"]
    assert missing == []


def test_drift_has_a_figure_per_layer_and_a_line_per_variant():
    group = compare(Result.from_dict(run) for run in study.every_result()).groups[0]
    figures, missing = drift(group.rows)
    assert [figure.title for figure in figures] == list(study.LAYERS)
    assert missing == []
    for figure in figures:
        assert [one["name"] for one in figure.data] == list(study.VARIANTS)
    stored = [run["figures"]["drift"][0]["mean_scale"][-1] for run in study.every_result()[:2]]
    assert figures[0].data[0]["y"][-1] == pytest.approx(sum(stored) / 2, rel=1e-4)


def test_ratios_are_pooled_by_layer_and_definition(render):
    first = [ratio(0.25), ratio(0.5, step=2), ratio(0.1, definition="other")]
    figures = [{"gradient_snr": first}, {"gradient_snr": [ratio(0.75)]}]
    tables, missing = pooled_ratios(rows(*figures))
    assert list(tables) == [("a", "d"), ("a", "other")]
    assert tables["a", "d"] == {(0, "loc"): {1: [(0.5, 0.25), (1.5, 0.75)], 2: [(1.0, 0.5)]}}
    assert missing == []
    base = {"format": 1, "experiment": "e", "variant": "v"}
    runs = [base | {"seed": seed, "figures": one} for seed, one in enumerate(figures)]
    text = render(runs).all_text
    assert "0.50 ± 0.25mean 1.00 ± 0.50" in text, "the mean of 0.25 and 0.75, and of twice that"
    assert "a: d" in text
    assert "a: other" in text


def test_ratios_that_cannot_be_used_are_counted():
    bad = [ratio(1.0, median="x"), ratio(1.0, layer=3), ratio(1.0, step=None), 7]
    _, missing = pooled_ratios(rows({"gradient_snr": [*bad, ratio(1.0)]}))
    assert missing == ["v, 4 of 5 entries"]
    assert pooled_ratios(rows({"gradient_snr": bad})) == ({}, ["v"])


def test_published_values_have_a_column_where_no_run_has_the_score(render):
    text = render([study.result("mean-field", 0)]).all_text
    assert "0.1330 ± 0.0040" in text, "of the paper; no run of ours has this score"


def counts(**changed):
    known = dict(weights=8, weights_left=3, rows=2, rows_left=1, columns=4, columns_left=3)
    return {"name": "a"} | known | changed


def test_sparsity_shows_means_over_seeds_of_every_layer_and_the_total(render):
    stored = [
        {"threshold": 0.1, "layers": [counts(weights_left=left)], "total": counts(name="total")}
        for left in (2, 4)
    ]
    runs = [study.result("mean-field", seed) for seed in (0, 1)]
    for run, value in zip(runs, stored, strict=True):
        run["figures"]["sparsity"] = value
    text = render(runs).all_text
    for part in (
        "below 0.1 are dropped",
        "3 of 8",
        "± 1",
        "62.5 % dropped",
        "rows 1 of 2",
        "columns 3 of 4",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    "changed", [{"weights": 0}, {"rows": "x"}, {"weights_left": -1}, {"columns": None}]
)
def test_sparsity_that_cannot_be_used_is_left_out(changed):
    value = {"layers": [counts(**changed), counts(name="b")]}
    found, missing = pooled_sparsity(rows({"sparsity": value}))
    assert found == {0: {"b": [Left(8, 3, 2, 1, 4, 3)]}}
    assert missing == []
    assert pooled_sparsity(rows({"sparsity": {"layers": [counts(**changed)]}})) == ({}, ["v"])
