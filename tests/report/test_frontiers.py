"""Size against error of compressed networks."""

from experiments.report import compare
from experiments.report.frontiers import frontiers
from experiments.report.reading import Result


def run(variant, seed, points, **more):
    figures = {"frontier": {"points": points, **more}}
    return Result("e", variant, seed, metrics={"nll": 1.0}, figures=figures)


def rows(*runs):
    return compare(runs).groups[0].rows


def test_every_seed_has_its_line():
    first = [
        {"weights": 100, "flops": 900, "error": 0.01},
        {"weights": 50, "flops": 800, "error": 0.02},
    ]
    second = [
        {"weights": 80, "flops": 700, "error": 0.005},
        {"weights": 90, "flops": 600, "error": 0.006},
    ]
    rival = {"BC": {"weights": 60, "flops": 500, "error": 0.01}}
    drawn, missing = frontiers(rows(run("a", 0, first, published=rival), run("a", 1, second)))
    assert not missing
    weights, flops = drawn
    ours, again, published = weights.data
    assert (ours["x"], ours["y"]) == ([50, 100], [2, 1]), "no seed is chosen by its test error"
    assert (again["x"], again["y"]) == ([80], [0.5]), "smaller and better than its other point"
    assert [ours["showlegend"], again["showlegend"]] == [True, False]
    assert ours["line"] == again["line"]
    assert (published["x"], published["y"], published["text"]) == ([60], [1], ["BC"])
    assert [line["x"] for line in flops.data[:2]] == [[800, 900], [600, 700]]
    assert "BC 1 % at 60" in weights.label


def test_what_cannot_be_drawn_is_named():
    drawn, missing = frontiers(rows(run("a", 0, [{"weights": "many", "error": 0.1}])))
    assert not drawn
    assert missing == ["a"]


def test_many_variants_leave_room_for_the_lines():
    points = [{"weights": 10, "flops": 20, "error": 0.1}]
    few, many = (frontiers(rows(*(run(f"v{i}", 0, points) for i in range(n))))[0] for n in (3, 9))
    assert all(one["showlegend"] for one in few[0].data)
    assert not any(one["showlegend"] for one in many[0].data)
    assert many[0].layout["margin"]["t"] <= few[0].layout["margin"]["t"]
