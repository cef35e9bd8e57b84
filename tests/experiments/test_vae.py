"""Auto-encoder experiments: what the paper says, annealing, resuming, what the result file holds."""

import json
from dataclasses import replace

import pytest
import torch

import kasuri
from experiments import catalog
from experiments.data.dataset import Dataset, Split
from experiments.report import compare, read, write_report
from experiments.running import Plan, run_one
from experiments.vae import Generative

TINY = Generative(
    name="vae/tiny",
    variant="matrix-normal",
    title="",
    latent=kasuri.vae.MatrixNormalLatent(2, 2),
    hidden=(8,),
    epochs=3,
    batch_size=50,
    warm_up=1,
    samples=20,
)


@pytest.fixture(autouse=True)
def bars(monkeypatch):
    """Bars in pictures of 6 x 6, with a note, instead of digits."""

    def part(count, seed):
        g = torch.Generator().manual_seed(seed)
        which = torch.randint(6, (count,), generator=g)
        x = torch.zeros(count, 6, 6)
        x[torch.arange(count), which] = 1.0
        return Split(x.flatten(1), which)

    data = Dataset(
        "static-mnist", part(200, 0), part(100, 1), part(60, 2), classes=tuple("abcdef"),
        pictures=(1, 6, 6), note="made of bars",
    )  # fmt: skip
    monkeypatch.setattr("experiments.data.load", lambda name: data)
    return data


@pytest.mark.parametrize(
    ("z", "sizes", "published"),
    [
        (40, [80, 253, 860, 62], [-89.14, -88.8, -87.94, None]),
        (9, [18, 21, 54, 15], [-96.80, -96.61, -96.20, None]),
    ],
)
def test_the_settings_are_those_of_the_paper(z, sizes, published):
    rows = catalog.variants(f"vae/static-mnist-{z}").values()
    assert [row.latent.size for row in rows] == sizes
    assert all(row.latent.dimensions == z for row in rows)
    values = [row.published and row.published["log_likelihood"][0] for row in rows]
    assert values == published


def test_a_result_has_scores_note_and_sheets_and_the_report_shows_them(tmp_path):
    plan = Plan(tmp_path / "results", tmp_path / "runs")
    for seed in (0, 1):
        for variant, latent in (
            ("diagonal", kasuri.vae.DiagonalLatent(4)),
            ("matrix-normal", TINY.latent),
        ):
            one = replace(TINY, variant=variant, latent=latent)
            path = run_one(one, seed, plan)
    content = json.loads(path.read_text())
    assert content["metrics"]["log_likelihood"] >= content["metrics"]["elbo"] - 0.5
    assert {"log_likelihood_sem", "elbo_sem", "kl", "active_units"} <= content["metrics"].keys()
    assert "log_likelihood" not in content["validation"]
    assert content["history"][-1]["kl_weight"] == 1.0
    titles = [one["title"] for one in content["figures"]["sheets"]]
    assert titles == ["Reconstructions", "Draws from the prior", "Traversals"]
    found, problems = read(tmp_path / "results")
    assert not problems
    page = write_report(found, tmp_path / "page.html").read_text()
    for text in ("made of bars", "Draws from the prior", "Differences to diagonal", "active units"):
        assert text in page
    assert compare(found)[0].rows[1].cells["log_likelihood"].error > 0
