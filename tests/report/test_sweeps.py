"""Curves over the temperature and the findings, as the report shows them."""

import pytest

from experiments.report import Result, compare
from experiments.report.sweeps import pooled, sweeps
from tests.report import samples

FINDING = {"kind": "timid", "what": "not sure enough", "advice": "lower the temperature"}


def run(tau, seed=0, series="mean-field", accuracy=0.9, **changed):
    one = samples.common("tempering/e", f"{series}-tau-{tau:g}", seed, "mnist", 1.0)
    one["metrics"] = {"accuracy": accuracy, "nll": 0.1, "kl": 5.0}
    one["published"] = {"accuracy": [0.5, None]}
    one["figures"] = {
        "sweep": {
            "x": "tau",
            "value": tau,
            "series": series,
            "curves": ["accuracy", "kl"],
            "marks": {"η = 1": 1.3},
            "beside": {"kl": 4.0},
        },
        "diagnosis": {"findings": [FINDING] if tau > 1 else []},
    }
    one["figures"] |= changed
    return one


def rows(runs):
    return compare([Result.from_dict(one) for one in runs]).groups[0].rows


def test_points_of_variants_become_curves_and_seeds_are_averaged():
    found, missing = pooled(rows([run(0.1), run(0.1, seed=1, accuracy=0.8), run(10.0)]))
    curve = found["tau"].scores["accuracy"]["mean-field"]
    assert curve.measured == {0.1: [0.9, 0.8], 10.0: [0.9]}
    assert curve.beside == {0.1: 0.5, 10.0: 0.5}
    assert found["tau"].scores["kl"]["mean-field"].beside == {0.1: 4.0, 10.0: 4.0}
    assert found["tau"].marks == {"η = 1": 1.3}
    assert missing == []


def test_the_figures_hold_ours_the_published_and_the_mark():
    figures, _ = sweeps(
        rows([run(0.1), run(10.0), run(0.1, series="k-tied"), run(10, series="k-tied")])
    )
    assert [one.title for one in figures] == ["Accuracy (%)", "KL in nats"]
    names = [trace["name"] for trace in figures[0].data]
    assert names == [
        "mean-field",
        "mean-field, published or exact",
        "k-tied",
        "k-tied, published or exact",
        "η = 1",
    ]
    assert figures[0].data[0]["y"] == pytest.approx([90.0, 90.0])
    assert figures[0].data[1]["y"] == pytest.approx([50.0, 50.0])
    assert figures[0].data[-1]["x"] == [1.3, 1.3]
    assert "η = 1 is at 1.3" in figures[0].label
    assert figures[0].layout["xaxis"]["type"] == "log"


@pytest.mark.parametrize(
    "broken",
    [3, {"x": 1}, {"x": "tau", "series": "a", "curves": ["accuracy"], "value": "1"}, {"x": "tau"}],
)
def test_points_that_cannot_be_used_are_named(broken, render):
    runs = [run(0.1), run(10.0, sweep=broken)]
    found, missing = pooled(rows(runs))
    assert missing == ["mean-field-tau-10"]
    assert found["tau"].scores["accuracy"]["mean-field"].measured == {0.1: [0.9]}
    assert "Without usable data: mean-field-tau-10" in render(runs).all_text


def test_the_page_shows_curves_and_findings(render):
    shown = render([run(0.1), run(10.0), run(10.0, seed=1)])
    text = shown.all_text
    assert "Curves over what was varied" in text
    assert text.count("not sure enough: lower the temperature.") == 1  # once for both seeds
    assert "Nothing to report: mean-field-tau-0.1." in text


def test_hostile_names_are_only_text(render):
    bad = {"findings": [{"what": samples.HOSTILE, "advice": "x"}]}
    shown = render([run(0.1, series=samples.HOSTILE, diagnosis=bad)])
    assert all("alert" not in one for one in shown.scripts if not one.startswith("{"))
    assert samples.HOSTILE in shown.all_text


def test_other_experiments_have_neither(render):
    shown = render([samples.fashion("plain", 0)])
    assert "Curves over what was varied" not in shown.all_text
    assert "Findings" not in shown.all_text
    odd = render([run(0.1, diagnosis={"findings": 3}), run(10.0, diagnosis="?")])
    assert "Nothing to report" in odd.all_text
