"""Pictures of the documentation that are made of result files."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from experiments.report import compare, read
from experiments.report.sweeps import pooled
from tools import curves

ROOT = Path(__file__).parent.parent


def test_the_picture_of_the_toy_is_that_of_its_result_files(tmp_path, monkeypatch):
    out = tmp_path / "toy.svg"
    monkeypatch.setattr("sys.argv", ["curves", str(ROOT / "results/tempering/toy"), str(out)])
    curves.main()
    assert out.read_text() == (ROOT / "docs/images/tempering-toy.svg").read_text()
    root = ElementTree.parse(out).getroot()
    circles = [one for one in root.iter() if one.tag.endswith("circle")]
    assert len(circles) == 2 * 2 * 2 * 5  # scores, rules, ours and exact, widths


def test_trained_toys_agree_with_the_closed_form():
    found, problems = read(ROOT / "results/tempering/toy")
    assert not problems
    study = pooled(compare(found).groups[0].rows)[0]["neurons"]
    for score, series in study.scores.items():
        assert len(series) == 2
        for curve in series.values():
            assert len(curve.measured) == 5, score
            for n, values in curve.measured.items():
                assert values == [pytest.approx(curve.beside[n], rel=0.01)]


def test_scales_and_ticks():
    place = curves.scale([1.0, 100.0], 0.0, 110.0, True)
    assert place(10.0) == pytest.approx(55.0)
    assert place(1.0) == pytest.approx(5.0)
    assert curves.ticks([1.0, 100.0], True) == [1.0, 10.0, 100.0]
    assert curves.ticks([0.0, 2.0], False) == [0.0, 0.5, 1.0, 1.5, 2.0]
