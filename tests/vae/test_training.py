"""`kasuri.fit` trains an auto-encoder unchanged: history, validation, early stopping, resuming to the bit."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import kasuri
from kasuri import vae
from kasuri.training import Validation, checkpoint
from tests.training.jobs import Stop, differences, ending
from tests.vae.models import FAMILIES, patterns, small

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize("latent", FAMILIES[:6:2], ids=str)
def test_training_raises_the_elbo(latent):
    model, x = small(latent), patterns(60, seed=1)[0]
    before = float(vae.elbo(model, x).mean())
    fitted = trained(0, model=model, epochs=60, learning_rate=0.01)
    assert fitted.net is model.net
    assert float(vae.elbo(model, x).mean()) > before + 1.0


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


def test_a_run_that_sigkill_ended_goes_on_to_the_same_bits(tmp_path):
    trained(1, tmp_path / "whole", callbacks=[Stop()])
    code = (
        "import os, signal, sys; from tests.vae.test_training import Stop, trained;"
        "trained(1, sys.argv[1], callbacks=[Stop(9, lambda: os.kill(os.getpid(), signal.SIGKILL))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "cut")], cwd=ROOT, timeout=120
    )
    assert done.returncode == -signal.SIGKILL
    trained(100, tmp_path / "cut", callbacks=[Stop()])
    assert differences(ending(tmp_path / "whole"), ending(tmp_path / "cut")) == []


def test_a_run_with_another_latent_family_is_not_resumed(tmp_path):
    trained(0, tmp_path, model=small(vae.KTiedLatent(3, 2, rank=1)))
    with pytest.raises(kasuri.training.CheckpointError, match="KTiedLatent"):
        trained(0, tmp_path, model=small(vae.KTiedLatent(2, 3, rank=1)))


def test_the_best_epoch_is_the_one_that_is_kept():
    """After a good beginning the rate explodes: the state of the beginning comes back."""

    def schedule(optimizer, steps):
        return torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda s: 1.0 if s < steps / 2 else 300.0
        )

    fitted = trained(0, model=small(), epochs=8, scheduler=schedule, learning_rate=0.003)
    scores = [row["valid_loss"] for row in fitted.history]
    assert fitted.best_epoch <= 5
    assert min(scores) < scores[-1] - 1
    found = -vae.elbo(fitted.objective, patterns(60, seed=1)[0], samples=500).mean()
    assert float(found) == pytest.approx(scores[fitted.best_epoch - 1], abs=0.5)


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


def test_compiled_training_gives_the_same_kl():
    """Through the backend without a C++ compiler; noise is drawn in another order, so the KL tells."""
    from torch._dynamo.backends.debugging import aot_eager

    torch._dynamo.reset()
    model = small()
    model.parts = torch.compile(model.parts, backend=aot_eager)
    plain, compiled = (
        trained(0, model=one, epochs=1, learning_rate=1e-12) for one in (small(), model)
    )
    torch._dynamo.reset()
    assert compiled.history[0]["kl"] == pytest.approx(plain.history[0]["kl"], rel=1e-4)
