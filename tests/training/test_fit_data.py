"""What may be given to `kasuri.fit` as data, and what of it is trained on."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

import kasuri
from kasuri.training import Batches, defaults
from kasuri.training.batches import hold_out
from tests.training import jobs
from tests.training.jobs import bayesian, equal, moons, network


class Seen(nn.Module):
    """Remembers the inputs of training and of evaluation that went through it."""

    def __init__(self):
        super().__init__()
        self.trained, self.evaluated = [], []

    def forward(self, x):
        (self.trained if self.training else self.evaluated).append(x.clone())
        return x


def test_the_likelihood_follows_the_type_of_the_targets():
    x = torch.randn(30, 2)
    assert isinstance(defaults.likelihood_of(torch.zeros(3, dtype=torch.int32)), kasuri.Categorical)
    for targets, outputs, kind in (
        (torch.arange(30) % 2, 2, kasuri.Categorical),
        (torch.randn(30, 1), 1, kasuri.Gaussian),
    ):
        fitted = kasuri.fit(network(outputs), (x, targets), epochs=1, seed=0)
        assert isinstance(fitted.objective.likelihood, kind)
    with pytest.raises(ValueError, match=r"kasuri\.Bernoulli\(\).*y\.long\(\)"):
        kasuri.fit(network(), (x, torch.randn(30, 2) > 0), epochs=1)
    yes = kasuri.fit(
        network(), (x, torch.randn(30, 2) > 0), likelihood=kasuri.Bernoulli(), epochs=1
    )
    assert math.isfinite(yes.history[0]["loss"])


def test_a_tenth_is_held_out_if_a_temperature_is_wanted():
    seen = Seen()
    bnn = kasuri.bayesianize(nn.Sequential(seen, nn.Linear(2, 2)), kasuri.MeanField(), inplace=True)
    x, y = moons(100)
    fitted = kasuri.fit(bnn, (x, y), epochs=3, batch_size=30, seed=4)
    assert fitted.objective.num_data == 90
    assert [row["step"] for row in fitted.history] == [3, 6, 9]
    trained = {tuple(row) for batch in seen.trained for row in batch.tolist()}
    held = {tuple(row) for batch in seen.evaluated for row in batch.tolist()}
    assert (len(trained), len(held)) == (90, 10)
    assert trained | held == {tuple(row) for row in x.tolist()}
    for first in range(0, 9, 3):  # every epoch has every row once
        assert len(torch.cat(seen.trained[first : first + 3]).unique(dim=0)) == 90


def test_nothing_is_held_out_with_validation_data_or_a_temperature():
    for more in ({"valid": moons(20, seed=1)}, {"temperature": 0.3}):
        fitted = kasuri.fit(bayesian(), moons(40), epochs=1, batch_size=8, seed=0, **more)
        assert fitted.objective.num_data == 40
        assert fitted.history[0]["step"] == 5
        assert ("valid_nll" in fitted.history[0]) == ("valid" in more)


def test_the_held_out_rows_depend_on_the_seed_alone():
    data = torch.arange(50.0).unsqueeze(1), torch.arange(50)
    (_, rest), (x, held) = hold_out(data, 0.1, seed=3)
    torch.manual_seed(99)
    assert torch.equal(hold_out(data, 0.1, seed=3)[1][1], held)
    assert not torch.equal(hold_out(data, 0.1, seed=4)[1][1], held)
    assert torch.equal(x.squeeze(1).long(), held)
    assert sorted(torch.cat([rest, held]).tolist()) == list(range(50))
    assert len(hold_out((torch.zeros(2, 1), torch.zeros(2)), 0.1, seed=0)[1][1]) == 1


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(3, 2)

    def forward(self, left, right):
        return self.a(left) + self.b(right)


def test_several_inputs():
    x, y = moons(40)
    other = torch.randn(40, 3)
    bnn = kasuri.bayesianize(Two(), kasuri.KTied(rank=1))
    fitted = kasuri.fit(bnn, ((x, other), y), epochs=2, batch_size=10, seed=0)
    assert "valid_accuracy" in fitted.history[-1]
    loader = DataLoader(TensorDataset(x, other, y), batch_size=10)  # yields (x1, x2, y)
    fitted = kasuri.fit(Two(), loader, ((x, other), y), epochs=2, seed=0)
    assert [row["step"] for row in fitted.history] == [4, 8]
    with pytest.raises(TypeError, match=r"give \(\(x1, x2\), y\), not a loader"):
        kasuri.fit(Two(), loader, loader, epochs=1)


def test_a_loader_with_its_own_generator():
    data, seen = TensorDataset(*moons(40)), Seen()
    own = torch.Generator().manual_seed(3)
    loader = DataLoader(data, batch_size=9, shuffle=True, drop_last=True, generator=own)
    bnn = kasuri.bayesianize(nn.Sequential(seen, nn.Linear(2, 2)), kasuri.MeanField(), inplace=True)
    fitted = kasuri.fit(bnn, loader, moons(20, seed=1), epochs=3, seed=0)
    assert [row["step"] for row in fitted.history] == [4, 8, 12]
    assert fitted.objective.num_data == 40
    orders = [torch.cat(seen.trained[i : i + 4]) for i in (0, 4, 8)]
    assert not torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[1], orders[2])
    assert all(len(order.unique(dim=0)) == 36 for order in orders)


def test_worker_processes_of_a_loader_change_nothing():
    def go(workers):
        data = DataLoader(jobs.Shaken(*moons(20)), 5, shuffle=True, num_workers=workers)
        return kasuri.fit(bayesian(), data, temperature=0.1, epochs=2, seed=0).net

    assert equal(go(1), go(1))


def test_the_number_of_data_of_a_loader_is_what_it_draws_from():
    data = TensorDataset(*moons(40))
    loader = DataLoader(data, batch_size=5, sampler=SubsetRandomSampler(range(20)))
    fitted = kasuri.fit(bayesian(), loader, temperature=0.1, epochs=1, seed=0)
    assert fitted.history[0]["step"] == 4
    assert fitted.objective.num_data == 20


@pytest.mark.parametrize("rows", [defaults.ROWS, 20])
def test_a_shuffled_loader_of_validation_data_gives_reproducible_scores(monkeypatch, rows):
    monkeypatch.setattr(defaults, "ROWS", rows)  # more than that are not used during training

    def go(ambient):
        net = network()
        torch.manual_seed(ambient)
        valid = DataLoader(TensorDataset(*moons(333, seed=1)), batch_size=50, shuffle=True)
        return [r["valid_nll"] for r in kasuri.fit(net, moons(40), valid, epochs=6, seed=0).history]

    assert go(1) == go(2)


class Endless(IterableDataset):
    def __iter__(self):
        yield from ()


def test_data_that_cannot_be_used_is_refused():
    x, y = moons(40)
    loader, batches = DataLoader(TensorDataset(x, y)), Batches(x, y, 4)
    for error, words, net, data, more in (
        (ValueError, "num_data=", network, DataLoader(Endless()), {}),
        (ValueError, "valid=", bayesian, loader, {}),
        (ValueError, "valid=", bayesian, batches, {}),
        (ValueError, "DataLoader has its own", network, loader, {"batch_size": 8}),
        (ValueError, "Batches has its own", network, batches, {"batch_size": 8}),
        (TypeError, "int", network, 3, {}),
        (TypeError, "as_tensor", network, (x, y.tolist()), {}),
        (TypeError, r"\(x, y\)", network, DataLoader(TensorDataset(x)), {}),
    ):
        with pytest.raises(error, match=words):
            kasuri.fit(net(), data, epochs=1, **more)


def test_default_sizes():
    assert defaults.epochs(10**9, 128, natural=True) == defaults.EPOCHS
    assert defaults.epochs(1, 128, natural=True) == defaults.STEPS
    assert defaults.epochs(1, 128, natural=False) == defaults.STEPS_OF_ADAM
    assert defaults.epochs(1, 1024, natural=True) == defaults.STEPS / 4
    fitted = kasuri.fit(network(), moons(300), epochs=1, seed=0)
    assert fitted.history[0]["step"] == math.ceil(300 / 128)


def test_large_data_sets_have_larger_batches_and_large_batches_longer_steps():
    data, settings = moons(10_240), {"epochs": 1, "seed": 0, "scheduler": kasuri.training.constant}
    (row,) = kasuri.fit(network(), data, **settings).history
    assert (row["step"], row["learning_rate"]) == (10_240 / 256, 0.002)
    (row,) = kasuri.fit(network(), data, batch_size=1024, **settings).history
    assert (row["step"], row["learning_rate"]) == (10, 0.004)
