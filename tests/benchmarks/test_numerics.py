"""The comparison of von Mises-Fisher functions runs, and stored results keep what the pages promise."""

import math

from benchmarks import moments, results, vmf
from benchmarks.timing import Plan


def test_published_errors_are_within_the_promise():
    result = results.stored(vmf.OUT)
    for quantity in vmf.QUANTITIES:
        found = result["accuracy"][quantity]["kasuri"]
        assert found.keys() == {str(d) for d in vmf.DIMENSIONS}
        assert all(error["worst"] <= 1e-10 and error["failed"] == 0 for error in found.values())


def test_a_quick_comparison_is_complete():
    result = vmf.result_of(Plan(rounds=1, warmup=1, burst=0.0), (3, 1000), (0.5, 100.0))
    assert {"settings", "versions", "commit", "date", "load", "wall_seconds"} <= result.keys()
    ratios = result["accuracy"]["A"]
    assert ratios["kasuri"]["3"]["worst"] < 1e-14
    assert 1e-3 < ratios["averaged bounds"]["3"]["worst"] < 0.1
    assert ratios["SciPy"]["1000"]["failed"] == 2, "underflow"
    assert result["accuracy"]["A'"]["averaged bounds"]["3"]["worst"] > 0.1
    text = vmf.tables(result)
    assert "(2 of 2 fail)" in text
    assert text.count("kasuri, with gradients") == 1
    times = [one["median_ms"] for case in result["speed"].values() for one in case.values()]
    assert all(time > 0 and math.isfinite(time) for time in times)


def test_stored_moments_are_near_those_of_draws():
    result = results.stored(moments.OUT)
    for name, found in result["networks"].items():
        assert name in moments.tables(result)
        assert found["full"]["probability"] < 0.03, name
        assert 0.8 < found["full"]["std_ratio"] < 1.2, name
