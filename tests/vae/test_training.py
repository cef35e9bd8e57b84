"""`kasuri.fit` trains an auto-encoder unchanged: history, validation, early stopping, resuming to the bit."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import kasuri
from kasuri import vae
from kasuri.training import Validation, checkpoint
from tests.training.jobs import Stop, differences, ending, interrupt
from tests.vae.models import patterns, small

EPOCHS, BATCH = 4, 30  # four steps per epoch


def trained(start, folder=None, model=None, patience=None, **more):
    checkpoint.EVERY = 0
    random.seed(1)  # a checkpoint holds the state of every generator, and a new process has others
    np.random.seed(1)
    model = (
        small(seed=start, kl_weight=kasuri.schedules.Exponential(2, 4)) if model is None else model
    )
    options = {"epochs": EPOCHS, "batch_size": BATCH, "seed": 5} | more
    valid = Validation(patterns(60, seed=1), samples=2, patience=patience)
    return kasuri.fit(model, patterns(120), valid, folder=folder, **options)


def test_history_has_the_terms_the_weight_and_the_validated_elbo():
    fitted = trained(0)
    assert [row["epoch"] for row in fitted.history] == [1, 2, 3, 4]
    for row in fitted.history:
        assert {"loss", "nll", "kl", "kl_weight", "learning_rate", "valid_loss"} <= row.keys()
    assert [row["kl_weight"] for row in fitted.history] == pytest.approx([0.001**0.5, 1, 1, 1])
    last, objective = fitted.history[-1], fitted.objective
    if fitted.best_epoch == EPOCHS:
        found = -vae.elbo(objective, patterns(60, seed=1)[0], samples=2000).mean()
        assert last["valid_loss"] == pytest.approx(float(found), abs=0.5)


def test_validation_has_the_whole_kl_whatever_the_weight():
    for weight in (0.0, 1.0):
        model = small(kl_weight=weight)
        fitted = trained(0, model=model, epochs=1, learning_rate=1e-12)
        if weight == 0.0:
            first = fitted.history[0]["valid_loss"]
    assert fitted.history[0]["valid_loss"] == pytest.approx(first, rel=1e-6)


def test_patience_waits_for_the_end_of_the_warm_up():
    def epochs(weight):
        # a rate this small improves nothing, so that only the warm-up holds training up
        fitted = trained(
            0, model=small(kl_weight=weight), epochs=20, patience=2, learning_rate=1e-20
        )
        return len(fitted.history)

    assert epochs(1.0) == 3
    assert epochs(kasuri.schedules.LinearOverEpochs(6, 4)) >= 7


def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path):
    trained(1, tmp_path / "whole", callbacks=[Stop()])
    with pytest.raises(kasuri.training.Interrupted):
        trained(1, tmp_path / "cut", callbacks=[Stop(9, interrupt)])
    trained(100, tmp_path / "cut", callbacks=[Stop()])
    assert differences(ending(tmp_path / "whole"), ending(tmp_path / "cut")) == []


def test_a_run_with_another_latent_family_is_not_resumed(tmp_path):
    trained(0, tmp_path, model=small(vae.KTiedLatent(3, 2, rank=1)))
    with pytest.raises(kasuri.training.CheckpointError, match="KTiedLatent"):
        trained(0, tmp_path, model=small(vae.KTiedLatent(2, 3, rank=1)))


def test_a_bayesian_decoder_is_one_call_away():
    latent = vae.MatrixNormalLatent(2, 2)
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(4, 10), nn.ELU(), nn.Linear(10, 12))
    model = vae.VAE(
        nn.Linear(12, latent.size),
        kasuri.bayesianize(decoder, kasuri.KTied(rank=2), estimator="local"),
        latent,
        prior=kasuri.HeNormal(),
        num_data=120,
        temperature=0.1,
    )
    fitted = trained(0, model=model, epochs=30, learning_rate=0.01)
    assert fitted.history[-1]["loss"] < fitted.history[0]["loss"] - 1
    found = vae.evaluate(fitted, patterns(60, seed=1), samples=100)
    assert found["log_likelihood"] > found["elbo"]


def test_compiled_terms_have_the_same_kl():
    """Through the backend without a C++ compiler; noise is drawn in another order, so the KL tells."""
    torch._dynamo.reset()
    model, x = small(), patterns(30)[0]
    compiled = torch.compile(model.parts, backend="aot_eager")
    assert compiled(x, x)[1].item() == pytest.approx(model.parts(x, x)[1].item(), rel=1e-4)
    torch._dynamo.reset()
