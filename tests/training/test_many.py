"""Networks trained together are the networks trained apart."""

import copy
import math

import pytest
import torch
from torch import nn

import kasuri
from kasuri.objectives.temperature import LOOKS
from kasuri.streams import mix
from kasuri.training import loop
from kasuri.training.many import Stack

FAMILIES = [
    kasuri.MeanField(),
    kasuri.KTied(rank=2),
    kasuri.MatrixNormal(),
    kasuri.ScaledMatrixNormal(),
    kasuri.Radial(),
]


def network(width=8):
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))


def table(seed, rows=40):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator)
    noise = torch.randn(rows, 1, generator=generator)
    return x, (x[:, :1] * x[:, 1:2]).sin() + 0.1 * noise


def converted(family, count, estimator="shared"):
    torch.manual_seed(0)
    return [kasuri.bayesianize(network(), family, estimator=estimator) for _ in range(count)]


def test_ordinary_networks_end_where_they_would_alone():
    torch.manual_seed(3)
    nets = [network() for _ in range(3)]
    alone = copy.deepcopy(nets)
    trains, valids = [table(i) for i in range(3)], [table(10 + i) for i in range(3)]
    options = {"epochs": 25, "batch_size": 16}
    together = kasuri.training.fit_many(nets, trains, valids, seed=5, **options)
    for member, one in enumerate(together):
        same = kasuri.fit(
            alone[member], trains[member], valids[member], seed=mix(5, member), **options
        )
        assert one.best_epoch == same.best_epoch
        for got, wanted in zip(one.history, same.history, strict=True):
            for key in set(wanted) - {"seconds"}:
                assert math.isclose(got[key], wanted[key], rel_tol=1e-3, abs_tol=1e-5), key
        for got, wanted in zip(one.net.parameters(), same.net.parameters(), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_a_stack_has_the_terms_of_its_members(family):
    nets = converted(family, 3)
    likelihoods = [kasuri.Gaussian(0.5) for _ in nets]
    elbos = [
        kasuri.ELBO(net, likelihood, kasuri.Normal(0.7), num_data=40)
        for net, likelihood in zip(nets, likelihoods, strict=True)
    ]
    for elbo in elbos:
        for p in elbo.parameters():
            p.data += 0.3 * torch.randn_like(p)
    data = [table(i, rows=6) for i in range(3)]
    apart_kl = torch.stack([elbo.kl() for elbo in elbos])
    draws = 60
    with torch.no_grad():
        apart = torch.stack(
            [
                torch.stack([elbo.parts(*part)[0] for _ in range(draws)])
                for elbo, part in zip(elbos, data, strict=True)
            ],
            dim=1,
        )
    stack = Stack(elbos)
    x, y = (torch.stack(parts) for parts in zip(*data, strict=True))
    torch.testing.assert_close(stack(x, y)[1], apart_kl)
    with torch.no_grad():
        together = torch.stack([stack(x, y)[0] for _ in range(draws)])
    error = ((apart.var(0) + together.var(0)) / draws).sqrt()
    assert ((apart.mean(0) - together.mean(0)).abs() < 4.5 * error).all()


@pytest.mark.parametrize("validated", [False, True])
def test_networks_train_in_training_mode_however_they_come(validated):
    modes = []

    class Seen(nn.Module):
        def forward(self, x):
            modes.append(self.training)
            return x

    nets = [nn.Sequential(nn.Linear(3, 1), Seen()).eval() for _ in range(2)]
    data = [table(i) for i in range(2)]
    options = {"epochs": 3, "batch_size": 40, "seed": 0}
    kasuri.training.fit_many(nets, data, data if validated else None, **options)
    assert modes.count(True) == 3, "one program serves all members"
    assert (False in modes) == validated


def test_members_share_nothing_but_the_program():
    """The same network on the same data: other batches, other noise, another end."""
    one = converted(kasuri.KTied(rank=2), 1)[0]
    nets = [one, copy.deepcopy(one)]
    fits = kasuri.training.fit_many(nets, [table(0)] * 2, temperature=0.1, epochs=3, seed=1)
    first, second = (fit.net.state_dict() for fit in fits)
    assert all(not torch.equal(first[key], second[key]) for key in first if first[key].numel())
    storages = {p.untyped_storage().data_ptr() for net in nets for p in net.parameters()}
    assert len(storages) == sum(1 for net in nets for _ in net.parameters()), "no stack left behind"


def test_each_has_its_own_temperature():
    nets = converted(kasuri.MeanField(), 3, estimator="local")
    fits = kasuri.training.fit_many(
        nets,
        [table(0)] * 3,
        temperature=[0.01, 1.0, 0.1],
        epochs=100,
        batch_size=20,
        learning_rate=0.02,
        seed=0,
    )
    assert [fit.temperature for fit in fits] == [0.01, 1.0, 0.1]
    cold, warm, middle = (float(net[0].posteriors.weight.scale.detach().mean()) for net in nets)
    assert cold < middle < warm


def test_temperatures_are_chosen_on_each_ones_validation_data(monkeypatch):
    """Every member is examined on its own rows, with its own weights, and moves its own temperature."""
    seen = []
    real = loop.examine

    def watched(objective, x, y, samples, seed):
        seen.append((objective, float(y.sum())))
        return real(objective, x, y, samples, seed)

    monkeypatch.setattr(loop, "examine", watched)
    nets, valids = converted(kasuri.MeanField(), 2), [table(7), table(8)]
    fits = kasuri.training.fit_many(nets, [table(0), table(1)], valids, epochs=20, seed=0)
    wanted = {id(fit.objective): float(y.sum()) for fit, (_, y) in zip(fits, valids, strict=True)}
    assert 40 + 2 <= len(seen) <= 40 + 2 * LOOKS  # validations, and looks while T rises
    assert all(wanted[id(objective)] == total for objective, total in seen)
    for fit, (x, y) in zip(fits, valids, strict=True):
        last = fit.history[-1]
        again = kasuri.evaluate(fit.objective, (x, y), samples=100)["nll"]
        assert last["valid_nll"] == pytest.approx(again, abs=0.2)
    assert fits[0].objective.temperature is not fits[1].objective.temperature


def test_gaussian_linear_models_reach_their_exact_posteriors():
    """Full-batch Bayesian linear regression: N((XᵀX/s² + 1)⁻¹Xᵀy/s², ...), three at once."""
    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(3):
        x = torch.randn(30, 2, generator=generator)
        data.append(
            (x, x @ torch.tensor([[1.0], [-2.0]]) + torch.randn(30, 1, generator=generator))
        )
    nets = [kasuri.bayesianize(nn.Linear(2, 1, bias=False), kasuri.FullNormal()) for _ in data]
    elbos = [
        kasuri.ELBO(net, kasuri.Gaussian(1.0), kasuri.Normal(1.0), num_data=30, samples=4)
        for net in nets
    ]
    kasuri.training.fit_many(elbos, data, epochs=250, batch_size=30, learning_rate=0.05, seed=0)
    for net, (x, y) in zip(nets, data, strict=True):
        precision = x.T @ x + torch.eye(2)
        mean = torch.linalg.solve(precision, x.T @ y).T
        q = net.posteriors.weight
        torch.testing.assert_close(q.mean, mean, atol=0.03, rtol=0)
        torch.testing.assert_close(
            q.variance, precision.inverse().diagonal()[None], atol=0, rtol=0.15
        )


def test_running_statistics_are_each_ones_own():
    torch.manual_seed(0)
    # no bias before the norm: its gradient is rounding noise, which Adam makes into steps
    nets = [
        nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 1))
        for _ in range(2)
    ]
    alone = copy.deepcopy(nets)
    data = [table(0), table(1)]
    options = {"epochs": 4, "batch_size": 20}
    kasuri.training.fit_many(nets, data, seed=2, **options)
    for member, (net, same) in enumerate(zip(nets, alone, strict=True)):
        kasuri.fit(same, data[member], seed=mix(2, member), **options)
        torch.testing.assert_close(net[1].running_mean, same[1].running_mean, rtol=1e-3, atol=1e-4)
        assert int(net[1].num_batches_tracked) == int(same[1].num_batches_tracked) == 8


def test_repeatable_and_leaves_the_generator_alone():
    ends = []
    for _ in range(2):
        nets = converted(kasuri.KTied(rank=1), 2)
        torch.manual_seed(9)
        kasuri.training.fit_many(nets, [table(0), table(1)], temperature=1.0, epochs=2, seed=4)
        ends.append((torch.rand(3), [p.clone() for net in nets for p in net.parameters()]))
    torch.manual_seed(9)
    assert torch.equal(ends[0][0], torch.rand(3))
    assert all(torch.equal(a, b) for a, b in zip(ends[0][1], ends[1][1], strict=True))


def test_what_cannot_be_stacked_is_refused():
    nets, data = converted(kasuri.MeanField(), 2), [table(0), table(1)]
    cold = {"temperature": 1.0}
    wider = [nets[0], kasuri.bayesianize(network(9), kasuri.MeanField())]
    elbos = [
        kasuri.ELBO(net, kasuri.Gaussian(1.0), kasuri.Normal(scale), num_data=40)
        for net, scale in zip(converted(kasuri.MeanField(), 2), (1.0, 2.0), strict=True)
    ]
    for words, models, given, more in (
        ("41", nets, [table(0), table(1, rows=41)], cold),
        ("share .*copy", [nets[0]] * 2, data, cold),
        ("1 trains for 2", nets, data[:1], cold),
        ("3 temperatures for 2", nets, data, {"temperature": [1.0] * 3}),
        ("valids=", nets, data, {}),
        ("out_features=8.*out_features=9", wider, data, cold),
        (r"prior.*1\.0.*2\.0", elbos, data, {}),
        ("valids=", nets, data, {"valids": [table(0), table(1, rows=0)]}),
    ):
        with pytest.raises(ValueError, match=words):
            kasuri.training.fit_many(models, given, **more)


def _elbo(net, **changed):
    known = {"likelihood": kasuri.Gaussian(1.0), "prior": kasuri.Normal(1.0), "num_data": 40}
    return kasuri.ELBO(net, **(known | changed))


def _frozen(net):
    net[0].posteriors.weight.loc.requires_grad_(False)
    return _elbo(net)


DIFFERENT = {
    "Tanh.*ReLU": lambda: _elbo(
        kasuri.bayesianize(
            nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)), kasuri.MeanField()
        )
    ),
    "families": lambda: _elbo(kasuri.bayesianize(network(), kasuri.MeanField(max_scale=0.1))),
    "estimator": lambda: _elbo(
        kasuri.bayesianize(network(), kasuri.MeanField(), estimator="local")
    ),
    "num_data": lambda: _elbo(converted(kasuri.MeanField(), 1)[0], num_data=4000),
    "samples": lambda: _elbo(converted(kasuri.MeanField(), 1)[0], samples=2),
    "output": lambda: _elbo(converted(kasuri.MeanField(), 1)[0], output=lambda f: f),
    "requires_grad": lambda: _frozen(converted(kasuri.MeanField(), 1)[0]),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_members_that_differ_in_more_than_values_are_refused(what):
    elbos = [_elbo(converted(kasuri.MeanField(), 1)[0]), DIFFERENT[what]()]
    with pytest.raises(ValueError, match=rf"networks 0 and 1 must be equal.*{what}"):
        kasuri.training.fit_many(elbos, [table(0), table(1)], epochs=1, seed=0)


def test_a_likelihood_that_two_share_is_refused():
    noise = kasuri.Gaussian()
    elbos = [_elbo(net, likelihood=noise) for net in converted(kasuri.MeanField(), 2)]
    with pytest.raises(ValueError, match=r"share .*likelihood.*copy\.deepcopy"):
        kasuri.training.fit_many(elbos, [table(0), table(1)], epochs=1, seed=0)


def test_a_loss_that_is_no_number_names_the_network():
    nets, bad = converted(kasuri.MeanField(), 2), table(1)
    bad[1][:] = float("nan")
    with pytest.raises(kasuri.training.NonFiniteLoss, match="network 1 is nan at step 0"):
        kasuri.training.fit_many(nets, [table(0), bad], temperature=1.0, epochs=1, seed=0)
