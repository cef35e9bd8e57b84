"""Sheets of pictures and differences between variants in the report."""

import base64
import struct
import zlib

import pytest
import torch

from experiments.report import Result, compare
from experiments.report.gains import QUANTILES, Gain, gain_text, gains
from experiments.report.sheets import parsed
from kasuri.vae.pictures import packed, sheet
from tests.report import samples


def run(variant, seed, log_likelihood=-90.0, **figures):
    common = samples.common("vae/static-mnist-9", variant, seed, "static-mnist", 90.0)
    return common | {"metrics": {"log_likelihood": log_likelihood}, "figures": figures}


def entry(**changed):
    page = torch.linspace(0, 1, 12).reshape(3, 4)
    return {"title": "Draws", "caption": "pixel means", **packed(page)} | changed


def pixels_of(image):
    """The pixels of a grey PNG, by its definition."""
    content = base64.b64decode(image.partition(",")[2])
    width, height = struct.unpack(">II", content[16:24])
    length = struct.unpack(">I", content[33:37])[0]
    rows = zlib.decompress(content[41 : 41 + length])
    return [list(rows[y * (width + 1) + 1 : (y + 1) * (width + 1)]) for y in range(height)]


def test_what_was_packed_is_what_is_shown():
    shown = torch.tensor(pixels_of(parsed(entry()).image)) / 255
    assert (shown - torch.linspace(0, 1, 12).reshape(3, 4)).abs().max() <= 1 / 30 + 1e-6
    assert shown[0, 0] == 0
    assert shown[-1, -1] == 1


def test_pictures_lie_row_by_row_on_a_sheet():
    page = sheet(torch.arange(1.0, 4.0).reshape(3, 1, 1).expand(3, 2, 2), columns=2)
    expected = [[1, 1, 0, 2, 2], [1, 1, 0, 2, 2], [0] * 5, [3, 3, 0, 0, 0], [3, 3, 0, 0, 0]]
    assert page.tolist() == expected


def test_sheets_of_the_first_seed_are_on_the_page(render):
    shown = render(
        [run("diagonal", s, sheets=[entry(), entry(title="Traversals")]) for s in (0, 1)]
    )
    images = [attrs for tag, attrs in shown.elements if tag == "img"]
    assert [one["alt"] for one in images] == [
        "Draws of diagonal: pixel means",
        "Traversals of diagonal: pixel means",
    ]
    assert all(one["src"].startswith("data:image/png;base64,") for one in images)
    assert "Pictures" in shown.all_text


@pytest.mark.parametrize(
    "junk",
    [
        {"pixels": "not base64!"},
        {"pixels": base64.b64encode(b"not zlib").decode()},
        {"pixels": base64.b64encode(zlib.compress(bytes(11))).decode()},
        {"pixels": base64.b64encode(zlib.compress(bytes(10**7))).decode()},
        {"shape": [10**6, 10**6]},
        {"shape": [3, True]},
        {"shape": "3x4"},
        {"pixels": None},
    ],
)
def test_what_is_no_picture_is_skipped_and_named(render, junk):
    assert parsed(entry(**junk)) is None
    text = render([run("diagonal", 0, sheets=[entry(**junk)])]).all_text
    assert "Without usable data: diagonal" in text


def test_hostile_words_are_text(render):
    bad = "<script>alert(1)</script>"
    shown = render([run("diagonal", 0, note=bad, sheets=[entry(title=bad, caption=bad)])])
    assert shown.all_text.count(bad) >= 3
    assert "Data:" not in shown.all_text


def test_nothing_is_said_where_nothing_is_stored(render):
    text = render([samples.fashion("k-tied-2", 0)]).all_text
    assert "Pictures" not in text
    assert "Differences to" not in text


def test_differences_are_taken_seed_by_seed():
    """Seeds differ by 5 nats, the variants by 0.3 ± 0.1 within each."""
    base = {0: -90.0, 1: -95.0, 2: -100.0}
    runs = [run("diagonal", seed, value) for seed, value in base.items()]
    runs += [
        run("matrix-normal", s, v + d)
        for (s, v), d in zip(base.items(), (0.2, 0.3, 0.4), strict=True)
    ]
    table = compare([Result.from_dict(one) for one in runs])
    (one,) = gains(table.groups[0].rows)
    assert one.mean == pytest.approx(0.3)
    assert one.error == pytest.approx(0.1 / 3**0.5)
    assert one.seeds == 3
    assert one.verdict == "better by more than the noise"  # 0.3 > 4.303 · 0.058
    text = gain_text(table)
    assert (
        "| matrix-normal | log-likelihood | +0.30 ± 0.06 | better by more than the noise |" in text
    )


def test_the_noise_is_the_interval_of_student_s_t():
    from scipy import stats

    for seeds, quantile in enumerate(QUANTILES, 2):
        assert quantile == pytest.approx(stats.t.ppf(0.975, seeds - 1), rel=1e-3)
    assert Gain("b", "ELBO", 0.42, 0.1, 3).verdict == "within the noise"
    assert Gain("b", "ELBO", -0.5, 0.1, 3).verdict == "worse by more than the noise"
    assert Gain("b", "ELBO", 0.21, 0.1, 30).verdict == "better by more than the noise"
    assert "one seed" in Gain("b", "ELBO", 5.0, None, 1).verdict


def test_seeds_that_only_one_variant_has_and_smoke_runs_do_not_count():
    runs = [run("diagonal", 0), run("diagonal", 1, -95.0), run("full-normal", 1, -94.0)]
    runs.append(run("k-tied", 0) | {"smoke": True})
    (one,) = gains(compare([Result.from_dict(r) for r in runs]).groups[0].rows)
    assert (one.variant, one.mean, one.seeds) == ("full-normal", 1.0, 1)
    assert gain_text(compare([Result.from_dict(runs[0])])) == ""
