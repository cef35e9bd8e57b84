"""Signal-to-noise ratios against numpy, by hand in a loop and inside `fit`, whole and resumed."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import kasuri
from kasuri.diagnostics import GradientSNR
from kasuri.training import Clip
from tests.diagnostics.networks import Recurrent, dense, randomised
from tests.training.jobs import Stop, interrupt


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: GradientSNR([10], window=1), "got 1"),
        (lambda: GradientSNR([]), "at least window=10"),
        (lambda: GradientSNR([9, 100]), r"got \[9, 100\]"),
        (lambda: GradientSNR([20, 25]), r"got \[20, 25\]"),
    ],
)
def test_impossible_options_are_refused(act, words):
    with pytest.raises(ValueError, match=words):
        act()


class Collect(kasuri.training.Callback):
    """Every gradient of every posterior parameter, kept whole."""

    def __init__(self):
        self.seen = []

    def on_step(self, objective, step, terms):
        assert step == len(self.seen)
        self.seen.append(
            {
                (layer, name): p.grad.double().numpy().copy()
                for layer, q in kasuri.named_posteriors(objective.net)
                for name, p in q.named_parameters()
            }
        )


def data(count=60):
    x = torch.randn(count, 7, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] > 0).long()


def train(callbacks, family=None, **options):
    torch.manual_seed(3)
    bnn = kasuri.bayesianize(dense(), family or kasuri.KTied(rank=2), estimator="local")
    return kasuri.fit(
        bnn,
        data(),
        **{"epochs": 4, "batch_size": 10, "temperature": 1.0, "seed": 0, "show": False} | options,
        callbacks=callbacks,
    )


def test_fit_records_what_gradients_collected_by_hand_give():
    collect, recorder = Collect(), GradientSNR([5, 12, 24, 12, 999], 5)
    train([collect, recorder, Clip(1e-3)])  # gradients are read before they are clipped
    assert len(collect.seen) == 24
    assert [(r["step"], r["layer"], r["parameter"]) for r in recorder.rows] == [
        (step, *key) for step in (5, 12, 24) for key in collect.seen[0]
    ]
    for row in recorder.rows:
        last = collect.seen[row["step"] - 5 : row["step"]]
        g = np.stack([one[row["layer"], row["parameter"]] for one in last])
        g = g[:, g.var(0) > 0]
        values = g.mean(0) ** 2 / g.var(0, ddof=1)
        assert row["elements"] == values.size
        assert row["mean"] == pytest.approx(values.mean(), rel=1e-6)
        assert row["median"] == pytest.approx(np.median(values), rel=1e-6)
    assert json.loads(json.dumps(recorder.rows)) == recorder.rows


def test_constant_gradients_are_left_out_and_pure_noise_has_its_floor():
    bnn = kasuri.bayesianize(nn.Linear(1000, 400), kasuri.MeanField(), bias=False)
    q, recorder = bnn.posteriors.weight, GradientSNR([10])
    q.log_scale.grad = torch.full_like(q.log_scale, 0.1)
    for step in range(10):
        q.loc.grad = torch.randn_like(q.loc)
        recorder.record(bnn, step)
    noise, constant = recorder.rows
    assert noise["mean"] == pytest.approx(9 / 70, rel=0.02)  # (n - 1) / (n (n - 3))
    assert constant["elements"] == 0


def test_recurrent_networks_and_a_loop_of_ones_own():
    bnn = randomised(Recurrent(), kasuri.MeanField(), spread=0.1)
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=50)
    x, y = torch.randint(11, (8, 4)), torch.randint(3, (8,))
    optimizer = torch.optim.Adam(bnn.parameters())
    own, other = GradientSNR([6], window=4), GradientSNR([6], window=4)
    for step in range(8):
        optimizer.zero_grad()
        elbo(x, y).loss.backward()
        own.record(bnn, step)
        other.record(elbo, step)
        optimizer.step()
    assert own.rows == other.rows
    assert {row["layer"] for row in own.rows} == {n for n, _ in kasuri.named_posteriors(bnn)}
    assert all(row["elements"] > 0 for row in own.rows)


def test_frozen_and_unused_parameters():
    bnn = kasuri.bayesianize(dense(), kasuri.MeanField(), bias=False)
    first, second = bnn[0].posteriors.weight, bnn[2].posteriors.weight
    first.log_scale.requires_grad_(False)
    recorder = GradientSNR([2], window=2)
    for step, value in enumerate((1.0, 2.0)):
        first.loc.grad = torch.full_like(first.loc, value)
        second.loc.grad = torch.ones_like(second.loc)
        recorder.record(bnn, step)  # the scales of the second have none: 0 at every step
    assert [(r["layer"], r["parameter"], r["elements"]) for r in recorder.rows] == [
        ("0.weight", "loc", 63),
        ("2.weight", "loc", 0),
        ("2.weight", "log_scale", 0),
    ]
    assert recorder.rows[0]["mean"] == pytest.approx(1.5**2 / 0.5)
    assert recorder.rows[1]["mean"] is None
    assert recorder.rows[1]["median"] is None


def test_records_that_cannot_be_right_are_refused():
    bnn = kasuri.bayesianize(dense(), kasuri.MeanField())
    with pytest.raises(ValueError, match="backward"):
        GradientSNR([2], window=2).record(bnn, 0)
    with pytest.raises(ValueError, match="bayesianize"):
        GradientSNR([2], window=2).record(nn.Linear(2, 2), 0)
    for p in bnn.parameters():
        p.grad = torch.ones_like(p)
    late, skipping = GradientSNR([12], window=4), GradientSNR([12], window=4)
    with pytest.raises(ValueError, match="step 9 after 0"):
        late.record(bnn, 9)
    skipping.record(bnn, 8)
    with pytest.raises(ValueError, match="step 10 after 1"):
        skipping.record(bnn, 10)


@pytest.mark.parametrize("stop", [0, 6, 8, 11, 13])
def test_a_resumed_run_records_what_a_whole_one_does(tmp_path, stop):
    """Steps 6, 8 and 13 lie in a window, 0 and 11 in none."""

    whole, parts, later = (GradientSNR([10, 17, 22], 5) for _ in range(3))
    train([whole, Stop()], kasuri.MeanField())
    with pytest.raises(kasuri.training.Interrupted):
        train([parts, Stop(stop, interrupt)], kasuri.MeanField(), folder=tmp_path)
    assert parts.rows != whole.rows
    train([later, Stop()], kasuri.MeanField(), folder=tmp_path)
    assert later.rows == whole.rows
    assert len(later.rows) == 3 * 8
