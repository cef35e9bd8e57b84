"""The comparison runs, and its stored result keeps the promise."""

import math

from benchmarks import vmf


def test_published_errors_are_within_the_promise():
    result = vmf.environment.stored(vmf.OUT)
    for quantity in vmf.QUANTITIES:
        found = result["accuracy"][quantity]["kasuri"]
        assert found.keys() == {str(d) for d in vmf.DIMENSIONS}
        assert all(one["worst"] <= 1e-10 and one["failed"] == 0 for one in found.values())


def test_a_quick_comparison_is_complete():
    result = vmf.result_of(vmf.QUICK, (3, 1000), (0.5, 100.0))
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
