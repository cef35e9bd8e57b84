"""The page as text: what is on it, what is escaped, what happens when something is missing."""

import base64
import io
import re
import zlib

import numpy as np
import pytest
from PIL import Image

from experiments.report import read
from tests.report import samples
from tests.report.samples import run

HEADINGS = {  # of what a file has under a key of `figures`
    "reliability": "Calibration",
    "intervals": "Predictive intervals",
    "spectrum": "Spectra of posterior scales and means",
    "convergence": "Convergence",
    "frontier": "Size and error",
    "sweep": "Curves over what was varied",
    "diagnosis": "Findings",
    "sheets": "Pictures",
    "layers": "Posterior per layer",
}


def headings(shown):
    return {heading for heading in HEADINGS.values() if heading in shown.all_text}


@pytest.mark.parametrize("folder", samples.STORED)
def test_everything_that_is_stored_is_on_the_page(render, folder):
    runs = samples.stored(folder)
    shown = render(runs, title="My title")
    keys = {key for one in runs for key, value in one["figures"].items() if value}
    assert headings(shown) == {HEADINGS[key] for key in keys if key in HEADINGS}
    words = {"My title", *(one[key] for one in runs for key in ("variant", "title"))}
    words |= {one["commit"][:12] for one in runs}
    assert not [word for word in words if word not in shown.all_text]
    ids = [attrs["id"] for _, attrs in shown.elements if "id" in attrs]
    links = [attrs["href"] for tag, attrs in shown.elements if tag == "a"]
    assert [link[1:] for link in links] == ids
    assert len(ids) == len(set(ids))
    plots = [attrs for _, attrs in shown.elements if attrs.get("class") == "plot"]
    assert len(plots) == len(shown.figures) > 0
    assert all(p["role"] == "img" and len(p["aria-label"]) > 30 for p in plots)
    images = [attrs for tag, attrs in shown.elements if tag == "img"]
    assert all(i["alt"] and i["src"].startswith("data:image/png;base64,") for i in images)
    assert bool(images) == ("sheets" in keys)
    policy = next(a["content"] for _, a in shown.elements if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    for _, attrs in shown.elements:
        for key in ("src", "href", "srcset", "action", "data"):
            assert not re.match(r"\s*(https?:)?//", attrs.get(key) or ""), "nothing from elsewhere"


def test_hostile_text_is_text_everywhere(render):
    bad = samples.HOSTILE
    keep = ("format", "experiment", "seed", "smoke")
    runs = []
    for one in samples.stored(*samples.STORED):
        changed = {k: v if k in keep else samples.with_text(v, bad) for k, v in one.items()}
        changed["figures"] |= {k: one["figures"][k] for k in ("sheets",) if k in one["figures"]}
        runs.append(changed | {"variant": bad, "settings": {bad: bad}, "metrics": {bad: 1.0}})
    runs = list({(one["experiment"], one["seed"]): one for one in runs}.values())
    shown = render(runs, title=bad)
    assert shown.all_text.count(bad) > 100
    assert "script" not in {tag for tag, _ in shown.elements}


def test_train_and_validation_and_one_line_per_variant(render):
    runs = samples.stored("results/demo/digits")
    loss, nll, *_ = render(runs).figures
    variants = [one["variant"] for one in runs]
    expected = [f"{v}, {part}" for v in variants for part in ("training", "validation")]
    lines = nll.findall("g")
    assert [line.findtext("title") for line in lines] == expected
    looks = {(g.get("stroke"), g.find("polyline").get("stroke-dasharray")) for g in lines}
    assert len(looks) == len(variants)
    assert [g.get("class") for g in loss.findall("g")] == [f"experiment-{i}" for i in range(5)]


@pytest.mark.parametrize(
    "missing", ["history", "figures", "metrics", "validation", "settings", "seconds", "versions"]
)
def test_a_missing_section_is_simply_absent(render, missing):
    runs = samples.stored("results/demo/digits")
    for gone in ({missing: None}, {}):
        cut = [{k: v for k, v in (one | gone).items() if gone or k != missing} for one in runs]
        assert ("Training" in render(cut).all_text) == (missing != "history")


@pytest.mark.parametrize("empty", [None, [], {}])
def test_nothing_is_said_where_nothing_is_stored(render, empty):
    shown = render([run("empty", figures=dict.fromkeys(HEADINGS, empty))])
    assert headings(shown) == set()
    assert "empty" in shown.all_text
    assert "nothing to show" in render([]).all_text


def test_results_of_version_0_2_are_read_and_named(render):
    results, problems = read(samples.ROOT / "results/k-tied/everywhere")
    assert not problems
    assert "weft 0.2.0" in render(results).all_text


def pixels(address):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))))


def sheet(**changed):
    packed = base64.b64encode(zlib.compress(bytes(range(0, 240, 20)))).decode()
    return {"title": "Draws", "caption": "means", "shape": [3, 4], "pixels": packed} | changed


def test_what_was_packed_is_what_is_shown(render):
    runs = [run("diagonal", s, figures={"sheets": [sheet(), sheet(title="More")]}) for s in (0, 1)]
    images = [attrs for tag, attrs in render(runs).elements if tag == "img"]
    assert [one["alt"] for one in images] == ["Draws: means", "More: means"], "of the first seed"
    assert pixels(images[0]["src"]).flatten().tolist() == list(range(0, 240, 20))
