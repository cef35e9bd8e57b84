"""The page as text: what is on it, what is escaped, what happens when something is missing."""

import io
import json
import random
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from experiments.report import Problem, Result, ResultError, page, write_report
from experiments.report.markup import Html, el, embedded, join
from experiments.report.pictures import Pictures, png
from tests.report import samples, study


def test_everything_is_on_the_page(render):
    shown = render(samples.every_result(), title="My title", pictures=samples.pictures)
    for words in (
        *(
            "My title",
            "quality/fashion-mnist",
            "quality/boston",
            "2 experiments, 7 variants, 11 runs",
        ),
        *("k-tied-10", "484,008", "96.80", "± 0.18", "published", "kasuri 0.2.0", "3f2c1ab94de0"),
        *("Training", "Calibration", "Predictive intervals", "Foreign inputs", "0.weight"),
        *("400 × 784", "Ankle boot", "batch size", "with uncommitted changes", "Xeon"),
    ):
        assert words in shown.all_text, words
    ids = [attrs["id"] for _, attrs in shown.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = [attrs["href"] for tag, attrs in shown.elements if tag == "a"]
    assert {"#quality-fashion-mnist", "#quality-boston"} <= set(links)
    assert all(link[1:] in ids for link in links)
    assert len(shown.figures) == sum(attrs.get("class") == "figure" for _, attrs in shown.elements)


def test_every_figure_and_picture_has_words(render):
    shown = render(samples.every_result(), pictures=samples.pictures)
    plots = [attrs for _, attrs in shown.elements if attrs.get("class", "").startswith("plot")]
    assert plots
    assert all(p["role"] == "img" and len(p["aria-label"]) > 30 for p in plots)
    images = [attrs for tag, attrs in shown.elements if tag == "img"]
    assert len(images) == 4 * 12
    assert all(i["alt"] and i["src"].startswith("data:image/png;base64,") for i in images)


def test_train_and_validation_and_one_line_per_variant(render):
    shown = render([samples.fashion(v, s) for v in samples.FASHION for s in (0, 1)])
    lines = [figure["data"] for figure in shown.figures]
    accuracy = next(data for data in lines if data[0]["name"] == "plain, training")
    assert sorted(t["name"] for t in accuracy) == sorted(
        f"{variant}, {part}" for variant in samples.FASHION for part in ("training", "validation")
    )
    styles = {(t["line"]["color"], t["line"]["dash"]) for t in accuracy}
    assert len(styles) == len(samples.FASHION)


def test_hostile_text_is_text_everywhere(render):
    bad = samples.HOSTILE
    run = samples.fashion("k-tied-2", 0)
    run |= {"experiment": bad, "variant": bad, "title": bad, "commit": bad, "started": bad}
    run["settings"] = {bad: bad, "data": bad}
    run["versions"] = {"kasuri": bad, bad: [bad]}
    run["metrics"][bad] = 1.0
    for layer in run["figures"]["layers"]:
        layer |= {"name": bad, "shape": [bad]}
    run["figures"]["ood"]["score"] = bad
    run["figures"] |= study.hostile(bad)
    run["figures"]["uncertain"][0] |= {"label": bad, "guess": bad, "index": bad}
    shown = render([run], title=bad, problems=[Problem(bad, bad)])
    assert shown.all_text.count(bad) > 20
    tags = [attrs for tag, attrs in shown.elements if tag == "script"]
    assert len(tags) == len(shown.figures) + 2
    assert all(t.get("type") == "application/json" for t in tags[:-2])
    names = {t.get("name", "") for figure in shown.figures for t in figure["data"]}
    assert any("&lt;script&gt;" in name for name in names), "Plotly reads tags in names"
    assert not any("<" in name for name in names)


def test_nothing_comes_from_elsewhere(render):
    shown = render(samples.every_result(), pictures=samples.pictures)
    for _, attrs in shown.elements:
        for key in ("src", "href", "srcset", "action", "data"):
            assert not re.match(r"\s*(https?:)?//", attrs.get(key) or "")
    policy = next(a["content"] for _, a in shown.elements if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("history", "hence not shown: training curves"),
        ("figures", "hence not shown: reliability, interval calibration, histograms"),
        ("metrics", "Training"),
        ("validation", "Training"),
        ("settings", "Training"),
        ("seconds", "Training"),
        ("published", "Training"),
        ("versions", "Training"),
    ],
)
def test_a_missing_section_is_said_or_simply_absent(render, missing, words):
    runs = [samples.fashion("k-tied-2", 0), samples.fashion("mean-field", 0)]
    for gone in ({missing: None}, {}):
        cut = [{k: v for k, v in (run | gone).items() if gone or k != missing} for run in runs]
        assert words in render(cut).all_text


def test_what_one_variant_lacks_is_said(render):
    runs = [samples.fashion("plain", 0), samples.fashion("k-tied-2", 0)]
    runs[0] |= {"history": [], "figures": {"ood": {"edges": [1, 0], "inside": [1], "outside": [2]}}}
    text = render(runs).all_text
    assert text.count("Without usable data: plain.") == 3
    assert "Not in the file: posterior per layer, uncertain test inputs." in text


def test_least_result_and_no_result(render):
    assert (
        "bare" in render([{"format": 1, "experiment": "e", "variant": "bare", "seed": 0}]).all_text
    )
    assert "nothing to show" in render([]).all_text


def test_problems_are_listed_without_machine_paths(render, tmp_path):
    where = tmp_path / "a" / "b" / "c" / "d" / "0.json"
    text = render([], problems=[Problem(str(where), "not JSON: why")]).all_text
    assert "b/c/d/0.json: not JSON: why" in text
    assert str(tmp_path) not in text


JUNK = (
    None,
    "x",
    -1,
    0,
    1e308,
    10**400,
    float("nan"),
    float("inf"),
    True,
    [],
    {},
    [None],
    [[]],
    "\ud800",
)


def damaged(value, rng):
    """A copy with some values replaced by junk, lists shortened, keys dropped."""
    if rng.random() < 0.04:
        return rng.choice(JUNK)
    if isinstance(value, dict):
        return {k: damaged(v, rng) for k, v in value.items() if rng.random() > 0.02}
    if isinstance(value, list):
        return [damaged(v, rng) for v in value if rng.random() > 0.02]
    return value


def usable(run):
    try:
        return Result.from_dict(run) is not None
    except ResultError:
        return False


@pytest.mark.parametrize("seed", range(30))
def test_damaged_files_never_break_the_page(render, seed):
    rng = random.Random(seed)
    runs = []
    for run in samples.every_result()[::2] + study.every_result()[::2]:
        sections = {key: damaged(value, rng) for key, value in run.items()}
        identity = {key: run[key] for key in ("format", "experiment", "variant", "seed")}
        runs.append(sections | identity)
    kept = [run for run in runs if usable(run)]
    assert len(kept) > 1
    assert kept[0]["variant"] in render(kept, pictures=samples.pictures).all_text


def test_same_input_same_page(tmp_path):
    results = [Result.from_dict(one) for one in samples.every_result()]
    first, second = (write_report(results, tmp_path / name) for name in ("a.html", "b.html"))
    assert first.read_bytes() == second.read_bytes()


def test_the_old_page_survives_a_failure(tmp_path, monkeypatch):
    path = tmp_path / "sub" / "report.html"
    write_report([], path)
    before = path.read_bytes()

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(page.os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        write_report([Result("e", "v", 0)], path)
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == ["report.html"]


def test_without_plotly_a_sentence_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ImportError, match=r"kasuri report needs plotly: pip install kasuri\[cli\]"):
        write_report([], tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_checkpoints_are_linked_relative_to_the_page(render, tmp_path):
    model = tmp_path / "models" / "a b#1.safetensors"
    model.parent.mkdir()
    model.touch()
    runs = [samples.regression("plain"), samples.regression("mean-field")]
    places = {"plain": model, "mean-field": tmp_path / "gone"}
    shown = render(runs, checkpoints=lambda result: places[result.variant])
    links = [attrs["href"] for tag, attrs in shown.elements if tag == "a"]
    assert [link for link in links if link[0] != "#"] == ["models/a%20b%231.safetensors"]


def broken_data(name):
    raise ConnectionError("no network")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (None, "no data sets were given"),
        (broken_data, "could not be loaded: no network"),
        (lambda name: SimpleNamespace(pictures=None, classes=None), "are not pictures"),
        (lambda name: SimpleNamespace(classes=["a"]), "AttributeError"),
        (
            lambda name: SimpleNamespace(
                test=SimpleNamespace(x=torch.zeros(1, 8)),
                pictures=(2, 2, 2),
                pixel_range=(0, 1),
                classes=[],
            ),
            "1 or 3 channels, not 2",
        ),
    ],
)
def test_cards_without_pictures_say_why(render, source, reason):
    shown = render([samples.fashion("k-tied-2", 0)], pictures=source)
    assert reason in shown.all_text
    assert "entropy 1.90, epistemic 0.55" in shown.all_text
    assert not any(tag == "img" for tag, _ in shown.elements)


@pytest.mark.parametrize("channels", [1, 3])
def test_png_is_read_by_pillow(channels):
    picture = torch.rand(channels, 5, 7) * 3 - 1
    image = Image.open(io.BytesIO(png(picture.tolist(), -1.0, 2.0)))
    assert image.size == (7, 5)
    pixels = torch.tensor(list(image.tobytes())).reshape(5, 7, channels).permute(2, 0, 1)
    assert torch.equal(pixels, torch.round((picture + 1) / 3 * 255).long())


def test_png_of_numbers_out_of_range():
    assert png([[[-9.0, 9.0, float("nan")]]], 0, 1) == png([[[0.0, 1.0, 0.0]]], 0, 1)
    assert png([[[5.0]]], 5, 5) == png([[[0.0]]], 0, 1)


def test_a_data_set_is_fetched_once():
    asked = []
    source = Pictures(lambda name: asked.append(name) or samples.pictures(name))
    assert source.encoded("fashion-mnist", 0)[0] != source.encoded("fashion-mnist", 1)[0]
    assert "no test input 60" in source.encoded("fashion-mnist", 60)[1]
    assert "no test input -1" in source.encoded("fashion-mnist", -1)[1]
    assert asked == ["fashion-mnist"]


def test_markup_escapes_everything_but_markup():
    assert el("a", "<", Html("<b>"), href='"&') == '<a href="&quot;&amp;">&lt;<b></a>'
    assert join(["<", None, el("i")]) == "&lt;<i></i>"
    text = embedded({"x": "</script><!--&\u2028"})
    assert json.loads(text[len('<script type="application/json">') : -len("</script>")]) == {
        "x": "</script><!--&\u2028"
    }
    assert text.count("<") == 2
