"""Temperatures that follow the size of the network: kasuri.Balanced and "auto"."""

import copy

import pytest
import torch
from torch import nn

import kasuri
from kasuri.objectives.temperature import Tempering, resolve


def network(width=7, bias=True):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(3, width, bias=bias),
        nn.ReLU(),
        nn.Linear(width, 5, bias=bias),
        nn.ReLU(),
        nn.Linear(5, 2, bias=bias),
    )
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.2))
    with torch.no_grad():
        for _, q in kasuri.named_posteriors(bnn):
            q.loc.normal_(0, 0.3)
            q.log_scale.normal_(-1.5, 0.5)
    return bnn


def objective(temperature, prior=None, **options):
    return kasuri.ELBO(
        network(),
        kasuri.Categorical(),
        prior or kasuri.Normal(0.7),
        num_data=90,
        temperature=temperature,
        **options,
    )


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


X, Y = torch.randn(11, 3, generator=torch.Generator().manual_seed(3)), torch.arange(11) % 2
WEIGHTS = 3 * 7 + 7 + 7 * 5 + 5 + 5 * 2 + 2


def seeded(elbo, seed=4):
    torch.manual_seed(seed)
    return elbo(X, Y)


@pytest.mark.parametrize(("over", "count"), [("parameters", WEIGHTS), ("neurons", 7 + 5)])
def test_the_loss_is_nll_plus_tau_kl_over_n_whatever_the_number_of_data(over, count):
    elbo = objective(kasuri.Balanced(0.3, over))
    loss, nll, kl = seeded(elbo)
    torch.testing.assert_close(loss, nll + 0.3 * elbo.kl() / count)
    torch.testing.assert_close(kl, elbo.kl())
    elbo.num_data = 12345  # the temperature was made for 90: only together they cancel
    again = copy.deepcopy(elbo)
    again = kasuri.ELBO(
        again.bnn, kasuri.Categorical(), kasuri.Normal(0.7), 12345, kasuri.Balanced(0.3, over)
    )
    torch.testing.assert_close(seeded(again).loss, loss)


def test_layers_weigh_the_same_each_divided_by_its_own_weights():
    elbo = objective(kasuri.Balanced(0.3, "layers"))
    q = dict(kasuri.named_posteriors(elbo.bnn))
    prior = kasuri.Normal(0.7)
    sizes = {"0": 28, "2": 40, "4": 12}
    parts = [
        (prior.kl(q[f"{name}.weight"]) + prior.kl(q[f"{name}.bias"])) / size
        for name, size in sizes.items()
    ]
    loss, nll, kl = seeded(elbo)
    torch.testing.assert_close(loss, nll + 0.3 * sum(parts))
    torch.testing.assert_close(loss, nll + elbo.weight_at(None) * kl / 90)
    assert abs(elbo.kl() - kl) > 1  # the KL itself is counted in full
    scores = kasuri.evaluate(elbo, (X, Y), samples=5)
    assert scores["kl"] == pytest.approx(elbo.kl().item())
    tempered = scores["gibbs_nll"] + 0.3 * sum(parts).item()
    assert scores["tempered_neg_elbo"] == pytest.approx(tempered, rel=1e-5)


def test_layers_under_one_fitted_prior_are_refused():
    with pytest.raises(ValueError, match="divided among them"):
        objective(kasuri.Balanced(1.0, "layers"), kasuri.Normal(1.0, learn="closed form"))
    own = {"*.weight": kasuri.HeNormal(), "*": kasuri.Normal(0.5)}
    assert objective(kasuri.Balanced(1.0, "layers"), own)(X, Y).loss.isfinite()


def test_the_output_is_an_average_over_the_neurons_of_the_last_layer():
    elbo = objective(kasuri.Balanced(0.3, average=True), output=lambda out: 2 * out)
    plain = objective(kasuri.Balanced(0.3))
    mine, other = (kasuri.predict(one, X, samples=3, seed=1) for one in (elbo, plain))
    raw = kasuri.predict(elbo.bnn, X, samples=3, seed=1).draws
    torch.testing.assert_close(mine.mean, (2 * raw / 5).softmax(-1).mean(0))
    torch.testing.assert_close(other.mean, raw.softmax(-1).mean(0))


@pytest.mark.parametrize("over", ["parameters", "neurons", "layers"])
def test_fit_takes_it_and_a_file_keeps_it(over, tmp_path):
    balance = kasuri.Balanced(0.05, over, average=True)
    bnn = network()
    fitted = kasuri.fit(bnn, (X, Y), temperature=balance, epochs=2, seed=0)
    assert fitted.temperature == balance.temperature(bnn, 11)
    kasuri.save(bnn, tmp_path / "m", objective=fitted.objective)
    again = kasuri.load_objective(
        tmp_path / "m", kasuri.load(tmp_path / "m", kasuri.collapse(network()))
    )
    assert again.balance == balance
    assert again.temperature == fitted.objective.temperature
    torch.testing.assert_close(seeded(again.eval()).loss, seeded(fitted.objective.eval()).loss)


def test_many_networks_take_it():
    nets, data = [network(), network()], [(X, Y), (X, 1 - Y)]
    fits = kasuri.fit_many(
        nets, data, temperature=kasuri.Balanced(0.05, "layers"), epochs=2, seed=0
    )
    assert [one.temperature for one in fits] == [0.05 * 11 / WEIGHTS] * 2
    chosen = kasuri.fit_many(
        [network(), network()], data, data, temperature="auto", epochs=2, seed=0
    )
    assert [one.history[0]["temperature"] for one in chosen] == [0.4 * 11 / WEIGHTS] * 2


def test_auto_is_the_default_of_fit_and_a_start_in_an_objective(tmp_path):
    settings = {"epochs": 3, "batch_size": 4, "seed": 0}
    said = kasuri.fit(network(), (X, Y), (X, Y), temperature="auto", **settings)
    default = kasuri.fit(network(), (X, Y), (X, Y), **settings)
    assert [r["valid_nll"] for r in said.history] == [r["valid_nll"] for r in default.history]
    elbo = objective("auto")
    assert elbo.weight_at(0) == pytest.approx(0.4 * 90 / WEIGHTS)
    assert isinstance(elbo.temperature, Tempering)
    elbo.temperature.value = 0.123
    kasuri.save(elbo.bnn, tmp_path / "m", objective=elbo)
    net = kasuri.load(tmp_path / "m", kasuri.collapse(network()))
    assert kasuri.load_objective(tmp_path / "m", net).temperature(0) == 0.123


def test_an_estimator_for_tables_takes_it(tmp_path):
    from kasuri.sklearn import BayesianRegressor

    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)).numpy()
    model = BayesianRegressor(
        hidden_layer_sizes=(4,),
        temperature=kasuri.Balanced(0.1, average=True),
        max_epochs=2,
        random_state=0,
    )
    model.fit(x, x[:, 0])
    model.save(tmp_path / "m")
    again = BayesianRegressor.load(tmp_path / "m")
    assert again.temperature == model.temperature
    assert (again.predict(x) == model.predict(x)).all()
    drawn = torch.as_tensor(model.sample_y(x, 200, random_state=0)).mean(-1)
    assert (drawn - torch.as_tensor(model.predict(x))).abs().max() < 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: kasuri.Balanced(-1.0), "0 or above"),
        (lambda: kasuri.Balanced(1.0, "weights"), "write one of"),
        (lambda: objective("best"), "kasuri.Balanced"),
        (
            lambda: kasuri.Balanced(1.0, "neurons").temperature(
                kasuri.bayesianize(nn.Linear(3, 1), kasuri.MeanField()), 5
            ),
            "no hidden neurons",
        ),
        (
            lambda: kasuri.Balanced(1.0, "neurons").temperature(
                kasuri.bayesianize(Scales(), kasuri.MeanField()), 5
            ),
            "one of a vector",
        ),
    ],
)
def test_refusals(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()


def test_numbers_and_schedules_are_taken_as_they_are():
    ramp = kasuri.schedules.LinearPerBatch(rate=0.1)
    assert resolve(ramp, network(), 10) is ramp
    assert resolve(0.2, network(), 10)(99) == 0.2
