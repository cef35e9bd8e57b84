"""The tables that `make tables` writes."""

import json
from types import SimpleNamespace

import pytest

from experiments.report import read
from tools import frontier
from tools.compression_tables import compression_tables
from tools.sweep_tables import sweep_tables
from tools.tables import ROOT
from tools.uci_tables import uci_tables


def write(folder, table, variant, **metrics):
    told = {"format": 1, "experiment": f"uci/{table}", "variant": variant, "seed": 0}
    path = folder / table / variant / "0.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(told | {"metrics": metrics, "seconds": {"total": 90.0}}))


def test_likelihoods_above_every_published_one_are_bold_and_counted(tmp_path):
    scores = {"nll_sem": 0.1, "rmse": 2.5, "rmse_sem": 0.25}
    write(tmp_path, "boston", "k-tied-2", nll=2.4, **scores)  # published: -2.46 at best
    write(tmp_path, "yacht", "k-tied-2", nll=1.4, **scores)  # -1.30
    write(tmp_path, "yacht", "plain", nll=1.1, **scores)
    write(
        tmp_path,
        "yacht",
        "mean-field-audited",
        **(scores | {"nll": 1.3, "count": 31, "as_published": -2.2, "as_published_sem": 0.1}),
    )
    shown = uci_tables(tmp_path).splitlines()
    assert "| boston |  | **-2.40 ± 0.10** | -2.90 ± 0.07 |" in "\n".join(shown)
    assert any(line.startswith("| yacht | **-1.10 ± 0.10** | -1.40 ± 0.10 |") for line in shown)
    assert "| plain | 1 | 1 | 1 | 2 |" in shown
    assert "| k-tied-2 | 2 | 1 | 0 | 3 |" in shown, "Boston by less than its standard error"
    assert "| yacht | 31 | -2.20 ± 0.10 | -2.36 ± 0.04 |  | -1.30 ± 0.10 |  |" in shown


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no result files"):
        uci_tables(tmp_path)


def sweep_point(folder, variant, seed, tau, series, curves, published=None, **metrics):
    told = {
        "format": 1,
        "experiment": "tempering/x",
        "variant": variant,
        "seed": seed,
        "title": "T",
    }
    sweep = {"x": "tau", "value": tau, "series": series, "curves": curves, "marks": {}}
    path = folder / variant / f"{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {"metrics": metrics, "figures": {"sweep": sweep}, "published": published or {}}
    path.write_text(json.dumps(told | body))


def test_one_curve_over_the_temperature_has_its_scores_side_by_side_and_seeds_averaged(tmp_path):
    curves = ["accuracy", "gibbs_nll"]
    for seed, nll in ((0, 0.1), (1, 0.3)):
        printed = {"accuracy": [0.97, None]}
        scores = {"accuracy": 0.9, "gibbs_nll": nll}
        sweep_point(tmp_path, "cold", seed, 0.01, "mean-field", curves, printed, **scores)
    sweep_point(tmp_path, "warm", 0, 1.0, "mean-field", curves, accuracy=0.8, gibbs_nll=0.5)
    lines = sweep_tables(tmp_path).splitlines()
    assert lines[0] == "### tempering/x: T"
    assert lines[2] == "| τ | Accuracy (%) | NLL of a draw (Gibbs) |"
    assert lines[4:] == ["| 0.01 | **90** / 97 | **0.2** |", "| 1 | 80 | 0.5 |"]


def test_several_curves_have_a_table_for_each_score(tmp_path):
    for tau, one, other in ((0.1, 1.0, 2.0), (1.0, 3.0, 1.5)):
        sweep_point(tmp_path, f"a-{tau}", 0, tau, "a", ["nll"], nll=one)
        sweep_point(tmp_path, f"b-{tau}", 0, tau, "b", ["nll"], nll=other)
    lines = sweep_tables(tmp_path).splitlines()
    assert lines[4] == "| τ | a | b |"
    assert lines[6:] == ["| 0.1 | **1** | 2 |", "| 1 | 3 | **1.5** |"]


def test_an_experiment_that_varies_nothing_is_refused(tmp_path):
    write(tmp_path, "x", "plain", nll=1.0)
    with pytest.raises(ValueError, match="uci/x"):
        sweep_tables(tmp_path)


def compressed(variant, seed, *points):
    told = [{"weights": w, "flops": f, "error": e} for w, f, e in points]
    rivals = {"BC": {"weights": 3000, "flops": 200_000, "error": 0.01}}
    return SimpleNamespace(
        variant=variant,
        seed=seed,
        title="LeNet",
        figures={"frontier": {"points": told, "published": rivals}},
    )


def test_frontiers_are_lines_of_networks_that_none_beats():
    found = [
        compressed("mean-field", 0, (900, 9e4, 0.012), (800, 8e4, 0.015), (950, 9e4, 0.014)),
        compressed("radial-double-moved", 1, (5000, 3e5, 0.008), (700, 1e5, 0.30)),
    ]
    lines = frontier.lines_of(found, "weights", worst=2.0)
    assert lines[0] == ("mean-field", False, [(800.0, 1.5), (900.0, pytest.approx(1.2))])
    assert lines[1] == ("radial", True, [(5000.0, pytest.approx(0.8))]), "30 % is off the picture"
    drawn = frontier.picture(found, worst=2.0)
    assert drawn.count("<polyline") == 2 * 2
    assert drawn.count("<circle") == 2 * 3
    assert drawn.count(">BC</text>") == 2


def test_shares_that_are_gone_of_each_layer_stand_beside_the_published_ones():
    point = {"left": "3-4", "weights": 30, "flops": 9, "error": 0.1, "layers": [54, 15]}
    point["valid_error"] = 0.125
    told = {"points": [point], "chosen": 0, "layers": [90, 60]}
    seeds = [
        SimpleNamespace(
            experiment="compression/vgg-x", variant="mean-field", seed=n, figures={"frontier": told}
        )
        for n in (0, 1)
    ]
    shown = compression_tables(seeds)
    assert "| mean-field | 0 | 3-4 | 30 | 9 | 10.00 | 12.50 |" in shown
    for seed in (0, 1):
        assert f"| mean-field, seed {seed} | 40 | 75 |" in shown
    assert shown.count("| mean-field, published | 30 | 61 |") == 1


def test_the_picture_in_the_documentation_is_that_of_the_results():
    found, _ = read(ROOT / "results/compression/lenet5")
    shown = (ROOT / "docs/images/frontier-lenet5.svg").read_text()
    assert shown == frontier.picture(found, worst=2.0) + "\n", (
        "write it again, see tools/frontier.py"
    )
