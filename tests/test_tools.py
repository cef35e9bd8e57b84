"""The tables and pictures that `make tables` writes."""

import re
from xml.etree import ElementTree

import pytest

from experiments.report import Result, compare
from experiments.report.panels import scale, ticks
from experiments.report.sweeps import pooled
from tools import charts, interval_chart, tables
from tools.paper_tables import compression_tables, sparsity_tables, sweep_tables
from tools.uci_tables import uci_tables


def uci(table, variant, **metrics):
    scores = {"nll_sem": 0.1, "rmse": 2.5, "rmse_sem": 0.25} | metrics
    return Result(f"uci/{table}", variant, 0, metrics=scores, seconds={"total": 90.0})


def test_likelihoods_above_every_published_one_are_bold_and_counted():
    found = [
        uci("boston", "k-tied-2", nll=2.4),  # published: -2.46 at best
        uci("yacht", "k-tied-2", nll=1.4),  # -1.30
        uci("yacht", "plain", nll=1.1),
        uci(
            *("yacht", "mean-field-audited"),
            **{"nll": 1.3, "count": 31, "as_published": -2.2, "as_published_sem": 0.1},
        ),
    ]
    shown = uci_tables(found).splitlines()
    assert "| boston |  | **-2.40 ± 0.10** | -2.90 ± 0.07 |" in "\n".join(shown)
    assert any(line.startswith("| yacht | **-1.10 ± 0.10** | -1.40 ± 0.10 |") for line in shown)
    assert "| plain | 1 | 1 | 1 | 2 |" in shown
    assert "| k-tied-2 | 2 | 1 | 0 | 3 |" in shown, "Boston by less than its standard error"
    assert "| yacht | 31 | -2.20 ± 0.10 | -2.36 ± 0.04 |  | -1.30 ± 0.10 |  |" in shown


def test_a_folder_without_results_is_refused():
    with pytest.raises(ValueError, match="no result files"):
        tables.results_in("docs/howto")


def point(tau, seed, series, published=None, **metrics):
    sweep = {"x": "tau", "value": tau, "series": series, "curves": list(metrics), "marks": {"m": 3}}
    return Result(
        *("tempering/x", f"{series}-{tau}", seed),
        title="T",
        metrics=metrics,
        published=published or {},
        figures={"sweep": sweep},
    )


ONE_CURVE = [
    point(0.01, 0, "a", {"accuracy": (0.97, None)}, accuracy=0.9, gibbs_nll=0.1),
    point(0.01, 1, "a", {"accuracy": (0.97, None)}, accuracy=0.9, gibbs_nll=0.3),
    point(1.0, 0, "a", accuracy=0.8, gibbs_nll=0.5),
]


def test_one_curve_over_the_temperature_has_its_scores_side_by_side_and_seeds_averaged():
    lines = sweep_tables(ONE_CURVE).splitlines()
    assert lines[0] == "### tempering/x: T"
    assert lines[2] == "| τ | Accuracy (%) | NLL of a draw (Gibbs) |"
    assert lines[4:] == ["| 0.01 | **90** / 97 | **0.2** |", "| 1 | 80 | 0.5 |"]


def test_several_curves_have_a_table_for_each_score():
    values = ((0.1, 1.0, 2.0), (1.0, 3.0, 1.5))
    found = [point(tau, 0, "a", nll=a) for tau, a, _ in values]
    lines = sweep_tables(found + [point(tau, 0, "b", nll=b) for tau, _, b in values]).splitlines()
    assert lines[4] == "| τ | a | b |"
    assert lines[6:] == ["| 0.1 | **1** | 2 |", "| 1 | 3 | **1.5** |"]


def test_an_experiment_that_varies_nothing_is_refused():
    with pytest.raises(ValueError, match="uci/x"):
        sweep_tables([uci("x", "plain", nll=1.0)])


def compressed(variant, seed, *networks, **frontier):
    points = [{"weights": w, "flops": f, "error": e} for w, f, e in networks]
    figures = {"frontier": {"points": points} | frontier}
    return Result("compression/vgg-x", variant, seed, title="LeNet", figures=figures)


def test_shares_that_are_gone_of_each_layer_stand_beside_the_published_ones():
    chosen = {"left": "3-4", "weights": 30, "flops": 9, "error": 0.1, "layers": [54, 15]}
    frontier = {"points": [chosen | {"valid_error": 0.125}], "chosen": 0, "layers": [90, 60]}
    shown = compression_tables([compressed("mean-field", seed, **frontier) for seed in (0, 1)])
    assert "| mean-field | 0 | 3-4 | 30 | 9 | 10.00 | 12.50 |" in shown
    for seed in (0, 1):
        assert f"| mean-field, seed {seed} | 40 | 75 |" in shown
    assert shown.count("| mean-field, published | 30 | 61 |") == 1


def test_shares_that_pruning_drops_stand_beside_the_published_ones():
    layer = {"weights": 10, "weights_left": 4}
    figures = {"sparsity": {"layers": [layer] * 13}}
    run = Result("matrix-normal/cifar10-group-short", "mean-field", 0, figures=figures)
    rows = sparsity_tables([run]).splitlines()
    assert rows[-2] == "| mean-field | weights |" + " 60 |" * 13
    assert rows[-1].startswith("| mean-field, published | weights | 30 | 61 |")


def elements(svg, name):
    root = ElementTree.fromstring(svg)
    return [one for one in root.iter() if one.tag.endswith(name)]


def test_frontiers_are_lines_of_networks_that_none_beats():
    rivals = {"BC": {"weights": 3000, "flops": 200_000, "error": 0.01}}
    worse = (800, 8e4, 0.015), (950, 9e4, 0.014)
    found = [
        compressed("mean-field", 0, (900, 9e4, 0.012), *worse, published=rivals),
        compressed("radial-double-moved", 1, (5000, 3e5, 0.008), (700, 1e5, 0.30)),
    ]
    drawn = charts.frontier_chart(found)
    assert len(elements(drawn, "polyline")) == 2 * 2
    assert len(elements(drawn, "circle")) == 2 * 3, "30 % is off the picture, 1.4 % is beaten"
    fills = [one.get("fill") for one in elements(drawn, "circle")]
    assert fills == [charts.COLOURS[0], charts.COLOURS[0], None] * 2, "moved pictures: rings"
    assert drawn.count(">BC</text>") == 2
    assert charts.family_of("scaled-mn-2700-weights-moved") == "scaled matrix normal"


def test_curves_have_dots_for_ours_and_rings_for_what_is_published():
    drawn = charts.sweep_chart(ONE_CURVE)
    radii = [one.get("r") for one in elements(drawn, "circle")]
    assert radii == ["3", "3", "4.5", "3", "3"]
    words = [one.text for one in elements(drawn, "text")]
    assert {"Accuracy (%)", "● a", "○ dotted: published, or exact", "τ", "m"} <= set(words)


def test_the_interval_of_the_page_on_tables_holds_its_share_of_targets(
    tmp_path, monkeypatch, capsys
):
    stored = interval_chart.OUT.read_text()
    (told,) = re.findall(r"<title>([\d.]+)% of 2,000", stored)
    assert 87 < float(told) < 96
    assert len(elements(stored, "circle")) == 200
    monkeypatch.setattr(interval_chart, "OUT", tmp_path / "picture.svg")
    interval_chart.main(epochs=2)
    drawn = interval_chart.OUT.read_text()
    assert len(elements(drawn, "polyline")) == len(elements(stored, "polyline")) == 5
    assert elements(drawn, "title")[0].text in capsys.readouterr().out


def test_scales_and_ticks():
    assert ticks([1.0, 1000.0], True) == [1.0, 10.0, 100.0, 1000.0]
    assert ticks([1.0, 10.0], True) == [1.0, 2.0, 5.0, 10.0]
    assert ticks([0.0, 2.0], False) == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert ticks([100.0, 100.0], False) == [100.0]
    place = scale([1.0, 100.0], 0.0, 110.0, True)
    assert place(10.0) == pytest.approx(55.0)
    assert place(1.0) == pytest.approx(5.0)


def test_trained_toys_agree_with_the_closed_form():
    (table,) = compare(tables.results_in("results/tempering/toy"))
    for score, series in pooled(table.rows).scores.items():
        assert len(series) == 2
        for curve in series.values():
            assert len(curve.measured) == 5, score
            for n, values in curve.measured.items():
                assert values == [pytest.approx(curve.beside[n], rel=0.01)]
