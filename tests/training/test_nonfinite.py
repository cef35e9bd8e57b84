"""A loss that is not a number: which step, which layer, why; and the checkpoint stays."""

import math

import pytest
import torch
from torch import nn

import kasuri
from kasuri.training import Batches, checkpoint, constant
from tests.training import jobs
from tests.training.jobs import Stop, bayesian, line, moons, network


class Break(nn.Module):
    """Returns infinity for one output in the calls from number `first` on."""

    def __init__(self, first=0):
        super().__init__()
        self.calls, self.first = 0, first

    def forward(self, x):
        self.calls += self.training
        if self.calls <= self.first:
            return x
        return torch.cat([x[:-1], x[-1:] + math.inf])


def go(net, data, **settings):
    """Four steps per epoch."""
    plain = {"epochs": 5, "batch_size": 10, "seed": 0} | settings
    return kasuri.fit(net, data, **plain)


def when(row, epochs=5):
    """(step, epoch, batch) at which a row is seen first, counting the latter two from 1."""
    order = Batches(torch.arange(40), torch.arange(40), 10, seed=0)
    batches = [rows.tolist() for epoch in range(epochs) for rows, _ in order.epoch(epoch)]
    step = next(i for i, rows in enumerate(batches) if row in rows)
    return step, step // 4 + 1, step % 4 + 1


def straight(convert, outputs=2):
    """Without a nonlinearity that would make infinity finite."""
    net = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, outputs))
    return kasuri.bayesianize(net, kasuri.KTied(rank=1), estimator="local") if convert else net


@pytest.mark.parametrize(("convert", "bad"), [(False, math.nan), (True, -math.inf)])
def test_bad_inputs(convert, bad):
    x, y = moons(40)
    x[17, 1] = bad
    step, epoch, batch = when(17)
    where = rf"at step {step} \(epoch {epoch}, batch {batch}\)"
    with pytest.raises(kasuri.training.NonFiniteLoss, match=where) as caught:
        go(straight(convert), (x, y), **({"temperature": 0.1} if convert else {}))
    assert "the inputs of this batch hold 1 non-finite values: clean the data" in str(caught.value)
    assert isinstance(caught.value, ArithmeticError)


def test_bad_inputs_among_several():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(2, 2)

        def forward(self, left, right):
            return self.a(left + right)

    x, y = moons(40)
    other = x.clone()
    other[3] = math.nan
    with pytest.raises(kasuri.training.NonFiniteLoss, match=r"inputs .* 2 non-finite"):
        go(Two(), ((x, other), y))


def test_bad_targets():
    x, y = line(40)
    y[5] = math.inf
    with pytest.raises(
        kasuri.training.NonFiniteLoss, match=rf"step {when(5)[0]} .*the targets of this batch"
    ):
        go(bayesian(outputs=1), (x, y), temperature=0.1)


@pytest.mark.parametrize("convert", [False, True])
def test_a_learning_rate_that_explodes(convert):
    net = straight(convert, outputs=1)
    with pytest.raises(kasuri.training.NonFiniteLoss) as caught:
        go(
            net,
            line(40),
            likelihood=kasuri.Gaussian(1.0),
            optimiser=lambda o: torch.optim.SGD(o.parameters(), 1e8),
            scheduler=constant,
            **({"temperature": 1.0} if convert else {}),
        )
    told = str(caught.value)
    assert "lower the learning rate (it is 1e+08) or clip gradients" in told
    names = [name for name, _ in net.named_parameters()]
    names = [name.replace("posteriors.", "") for name in names]
    assert any(f"parameter {name} " in told for name in names) or "layer '" in told


@pytest.mark.parametrize("convert", [False, True])
def test_a_layer_that_breaks_is_named(convert):
    net = nn.Sequential(nn.Linear(2, 6), Break(first=6), nn.ReLU(), nn.Linear(6, 2))
    if convert:
        net = kasuri.bayesianize(net, kasuri.KTied(rank=1), inplace=True)
    with pytest.raises(
        kasuri.training.NonFiniteLoss, match=r"step 6 \(epoch 2, batch 3\)"
    ) as caught:
        go(net, moons(40), **({"temperature": 0.1} if convert else {}))
    assert "layer '1' gave 6 non-finite outputs for inputs up to" in str(caught.value)


def test_the_inner_layer_is_named_not_the_block_around_it():
    net = nn.Sequential(nn.Linear(2, 4), nn.Sequential(nn.ReLU(), Break()), nn.Linear(4, 2))
    with pytest.raises(kasuri.training.NonFiniteLoss, match=r"layer '1\.1' gave"):
        go(net, moons(40))


def test_a_network_whose_own_forward_breaks_is_named():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x):
            return self.linear(x) / (x[:, :1] * 0)

    with pytest.raises(kasuri.training.NonFiniteLoss) as caught:
        go(Own(), moons(40))
    assert "Own" in str(caught.value)
    assert "every layer's output" not in str(caught.value)


def test_noise_that_broke_a_layer_is_drawn_again():
    class Rare(nn.Module):
        def forward(self, x):
            return x / (torch.rand(()) > 0.3) if self.training else x

    net = nn.Sequential(nn.Linear(2, 4), Rare(), nn.Linear(4, 2))
    for seed in range(5):
        with pytest.raises(kasuri.training.NonFiniteLoss, match="layer '1' gave"):
            go(net, moons(40), seed=seed, epochs=20)


def test_a_parameter_that_broke_in_an_update_is_named():
    def poison(self, objective, step, terms):
        if step == 5:
            objective.net[2].posteriors.weight.loc.grad[0, 0] = math.nan

    stop = Stop()
    stop.on_step = poison.__get__(stop)
    with pytest.raises(
        kasuri.training.NonFiniteLoss, match=r"step 6 .*2\.weight\.loc .*non-finite"
    ):
        go(bayesian(), moons(40), temperature=0.1, callbacks=[stop])


def test_a_posterior_whose_divergence_overflows_is_named():
    bnn = bayesian()
    with torch.no_grad():
        bnn[2].posteriors.weight.loc.fill_(3e19)  # its square does not fit a float
    with pytest.raises(
        kasuri.training.NonFiniteLoss, match=r"step 0 .*KL of 2\.weight .*non-finite"
    ):
        go(bnn, moons(40), temperature=0.1)


def test_a_prior_scale_that_ran_away_is_blamed():
    prior = kasuri.Normal(1.0, learn="gradient")
    with torch.no_grad():
        prior.log_scale.fill_(-60.0)  # its precision does not fit a float
    with pytest.raises(kasuri.training.NonFiniteLoss) as caught:
        go(bayesian(), moons(40), temperature=0.1, prior=prior)
    assert "prior" in str(caught.value)
    assert "the KL are finite" not in str(caught.value)


def test_a_likelihood_that_overflows_is_blamed():
    x, y = line(40)
    with pytest.raises(kasuri.training.NonFiniteLoss, match=r"log-likelihood.*noise near zero"):
        go(network(outputs=1), (x, y), likelihood=kasuri.Gaussian(1e-30))


def test_the_checkpoint_stays_and_can_be_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "EVERY", 0)

    def run(folder, first):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 6), Break(first), nn.Linear(6, 2))
        bnn = kasuri.bayesianize(net, kasuri.KTied(rank=1), inplace=True)
        return go(bnn, moons(40), temperature=0.1, folder=folder)

    with pytest.raises(kasuri.training.NonFiniteLoss, match=r"step 14 .*untouched") as caught:
        run(tmp_path / "a", first=14)
    assert str(tmp_path / "a") in str(caught.value)
    left = checkpoint.read(tmp_path / "a")
    assert left["position"]["step"] == 12
    assert all(torch.isfinite(v).all() for v in left["objective"].values())
    data = (tmp_path / "a" / "checkpoint.pt").read_bytes()
    with pytest.raises(kasuri.training.NonFiniteLoss):
        run(tmp_path / "a", first=0)
    assert (tmp_path / "a" / "checkpoint.pt").read_bytes() == data
    whole = run(tmp_path / "b", first=99)
    assert jobs.equal(run(tmp_path / "a", first=99).net, whole.net)
