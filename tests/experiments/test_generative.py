"""Auto-encoder experiments: what the paper says, annealing, resuming, what the result file holds."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import kasuri
from experiments import catalog
from experiments.data.dataset import Dataset, Split
from experiments.generative import Generative
from experiments.networks import auto_encoder
from experiments.report import compare, read, write_report
from experiments.running import Plan, run_one
from experiments.spec import Where
from kasuri.training.distributed import Processes

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
        pictures=(1, 6, 6), pixel_range=(0.0, 1.0), note="made of bars",
    )  # fmt: skip
    monkeypatch.setattr("kasuri.experiments.generative.datasets.load", lambda name: data)
    return data


@pytest.mark.parametrize(("z", "sizes"), [(40, [80, 253, 860, 62]), (9, [18, 21, 54, 15])])
def test_the_settings_are_those_of_the_paper(z, sizes):
    rows = list(catalog.variants(f"vae/static-mnist-{z}").values())
    assert [row.variant for row in rows] == ["diagonal", "matrix-normal", "full-normal", "k-tied"]
    assert [row.latent.size for row in rows] == sizes
    for row in rows:
        assert row.latent.dimensions == z
        assert (row.hidden, row.batch_size, row.learning_rate) == ((300,) * 3, 100, 5e-4)
        assert (row.epochs, row.warm_up, row.samples) == (1000, 300, 5000)
    published = [row.published and row.published["log_likelihood"][0] for row in rows]
    expected = {40: [-89.14, -88.8, -87.94, None], 9: [-96.80, -96.61, -96.20, None]}
    assert published == expected[z]
    for short in catalog.variants(f"vae/static-mnist-{z}-short").values():
        assert short.published is None
        assert short.epochs * short.limit <= 1000 * 50_000 / 100


def test_networks_start_at_the_variances_of_the_prior():
    latent = kasuri.vae.FullLatent(9)
    torch.manual_seed(0)
    encoder, decoder = auto_encoder(36, (12, 10, 8), latent.size, 9)
    assert [layer.out_features for layer in encoder if isinstance(layer, nn.Linear)] == [
        12,
        10,
        8,
        54,
    ]
    assert [layer.out_features for layer in decoder if isinstance(layer, nn.Linear)] == [
        12,
        10,
        8,
        36,
    ]
    assert sum(isinstance(layer, nn.ELU) for layer in encoder) == 3
    q = latent(encoder(torch.rand(5, 36)))
    assert (q.variance == 1).all()
    assert q.mean.std() > 0.1
    torch.testing.assert_close(q.kl(), 0.5 * q.mean.square().sum(1))


def test_families_start_with_the_same_networks_and_means():
    started = []
    for latent in (
        kasuri.vae.DiagonalLatent(9),
        kasuri.vae.FullLatent(9),
        kasuri.vae.KTiedLatent(3, 3, 1),
    ):
        torch.manual_seed(0)
        started.append(auto_encoder(36, (12, 10), latent.size, 9))
    x = torch.rand(5, 36)
    for encoder, decoder in started[1:]:
        torch.testing.assert_close(encoder(x)[:, :9], started[0][0](x)[:, :9])
        torch.testing.assert_close(decoder(x[:, :9]), started[0][1](x[:, :9]))


@pytest.mark.parametrize(
    ("annealing", "values"),
    [("exponential", [0.01, 0.1, 1, 1]), ("linear", [0, 0.5, 1, 1]), ("none", None)],
)
def test_the_kl_is_annealed(annealing, values):
    weight = replace(TINY, annealing=annealing, warm_up=4).weight(num_data=200)
    if values is None:
        assert weight == 1.0
    else:
        assert [weight(4 * epoch) for epoch in (0, 2, 4, 9)] == pytest.approx(values)


def test_a_result_has_scores_note_and_sheets_and_the_report_shows_them(tmp_path):
    plan = Plan(tmp_path / "results", tmp_path / "runs")
    for seed in (0, 1):
        for variant, latent in (
            ("diagonal", kasuri.vae.DiagonalLatent(4)),
            ("matrix-normal", TINY.latent),
        ):
            one = replace(TINY, variant=variant, latent=latent)
            path = run_one(one, seed, plan, Processes(), say=lambda text: None)
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
    assert compare(found)[0].rows[1].cells["log_likelihood"].over == "seeds"


def test_an_interrupted_run_goes_on_to_the_same_result(tmp_path):
    whole = TINY.run(0, Where(tmp_path / "whole", show=False))
    with pytest.raises(RuntimeError, match="enough"):
        _interrupted(tmp_path / "cut")
    again = TINY.run(0, Where(tmp_path / "cut", show=False))
    assert again.metrics == whole.metrics
    assert again.figures == whole.figures


def _interrupted(folder):
    with pytest.MonkeyPatch.context() as patch:
        forward, calls = kasuri.vae.VAE.forward, []

        def limited(self, *args, **kwargs):
            calls.append(1)
            if len(calls) > 6:
                raise RuntimeError("enough")
            return forward(self, *args, **kwargs)

        patch.setattr(kasuri.vae.VAE, "forward", limited)
        TINY.run(0, Where(folder, show=False))


def test_test_data_are_left_alone_in_a_sweep():
    found = TINY.run(0, Where(None, show=False, test=False))
    assert found.metrics == {}
    assert found.validation["elbo"] < 0
