"""Where to cut: a level for every layer, and columns that are read at single places."""

import pytest
import torch
from torch import nn

import kasuri
from kasuri.compression.decisions import Decider
from kasuri.compression.search import PerLayer, Search
from kasuri.compression.units import masked_net
from tests.compression.networks import Attending
from tests.compression.test_compress import left


def searched(
    costs: dict[str, list[float]],
    values: dict[str, list[float]],
    threshold: PerLayer,
    a: float = 1.0,
    b: float = 1.0,
):
    """Two layers whose units cost so many nats if they go, at these prices: what stays, and the losses."""
    whole = nn.ParameterDict({name: torch.ones(len(each)) for name, each in values.items()})
    statistics = {(name, "weights"): torch.tensor(each).double() for name, each in values.items()}
    decider = Decider(whole, [], statistics, "weights")

    def gone(masks, name):
        return ~masks.get(name, torch.tensor(True).expand(len(values[name])))

    def loss(masks):
        return sum(
            c
            for name in costs
            for c, g in zip(costs[name], gone(masks, name).tolist(), strict=True)
            if g
        )

    cut = Search(decider, threshold, loss, {"a": a, "b": b}).run()
    masks = decider.masks(cut.levels)
    return {name: (~gone(masks, name)).tolist() for name in values}, cut.trials


def test_units_go_where_they_cost_least_whatever_their_statistics_say_across_layers() -> None:
    """By one level for all, the units of a would go first: each of them costs too much."""
    costs = {"a": [1.0, 1.0, 1.0], "b": [0.01, 0.01, 0.5]}
    values = {"a": [-3.0, -2.0, -1.0], "b": [1.0, 2.0, 3.0]}
    stays, trials = searched(costs, values, PerLayer(0.1))
    assert stays == {"a": [True] * 3, "b": [False, False, True]}
    assert trials[0] == 0


def test_what_is_dear_goes_first() -> None:
    costs = {"a": [0.1, 0.1], "b": [0.1, 0.1]}
    values = {"a": [1.0, 2.0], "b": [1.0, 2.0]}
    for prices, gone in (({"a": 10.0, "b": 1.0}, "a"), ({"a": 1.0, "b": 10.0}, "b")):
        stays, _ = searched(costs, values, PerLayer(0.2), **prices)
        assert [not any(stays[name]) for name in ("a", "b")] == [gone == "a", gone == "b"]


def test_a_step_that_costs_too_much_is_tried_smaller() -> None:
    costs = {"a": [0.0] * 19 + [9.0] * 5, "b": [9.0]}
    values = {"a": [float(n) for n in range(24)], "b": [0.0]}
    stays, trials = searched(costs, values, PerLayer(0.0))
    assert stays["a"].count(False) == 19
    assert all(stays["b"])
    assert len(trials) < 24, "not one by one"


def convolution() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 16, 8),
        nn.ReLU(),
        nn.Linear(8, 3),
    )
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.05, noise=0.0))
    with torch.no_grad():
        bnn[3].posteriors.weight.loc[:, 20:27] = 0.0  # seven places of the second channel
        bnn[3].posteriors.weight.loc[:, 32:48] = 0.0  # the third channel
        bnn[0].posteriors.weight.loc[2] = 0.0
    return bnn, torch.randn(5, 1, 6, 6)


def test_columns_behind_a_flattening_go_one_by_one_and_units_as_a_whole() -> None:
    bnn, x = convolution()
    small, report = kasuri.compress(bnn, x, threshold=1e-4)
    assert left(report)["0"] == 3
    assert small[3].in_features == 48
    assert int((small[3].weight == 0).all(0).sum()) == 7
    masked = masked_net(kasuri.collapse(bnn).double(), report.masks)
    torch.testing.assert_close(small.double()(x.double()), masked(x.double()), rtol=0, atol=1e-10)
    assert report.after.nonzero == report.after.weights - 7 * 8


def test_a_unit_at_many_places_stays_where_its_maker_has_to_agree() -> None:
    bnn, x = convolution()
    with torch.no_grad():
        bnn[0].posteriors.weight.loc[2] = 1.0
        bnn[3].posteriors.weight.loc[:, 32:48] = 1e-6
    small, report = kasuri.compress(bnn, x, threshold=1e-4, structure="both")
    assert small[0].out_channels == 4
    assert bool(report.masks["3.weight"][:, 32:48].all())


@pytest.mark.parametrize(("price", "budget"), [("weights", 150), ("macs", 400)])
def test_a_budget_is_kept_whatever_it_costs(price: str, budget: int) -> None:
    bnn, _ = convolution()
    with torch.no_grad():
        bnn[5].posteriors.weight.loc *= 100.0  # sure of its answers, so that every unit matters
    x = torch.randn(200, 1, 6, 6)
    y = kasuri.collapse(bnn)(x).argmax(1)
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=200)

    def left_over(budget: int | None) -> int:
        _, report = kasuri.compress(
            elbo,
            x,
            threshold=kasuri.compression.PerLayer(0.0, price, budget),
            validation=(x, y),
        )
        return report.after.nonzero if price == "weights" else report.after.sparse_macs

    assert left_over(None) > budget
    assert budget / 4 < left_over(budget) <= budget  # no more goes than has to


def test_more_than_the_budget_asks_may_go_within_the_tolerance() -> None:
    costs = {"a": [0.0, 0.0, 1.0], "b": [0.0, 1.0, 1.0]}
    values = {"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0, 3.0]}
    for budget, left_over in ((5, 3), (2, 2), (1, 1)):
        stays, _ = searched(costs, values, PerLayer(0.1, budget=budget))
        assert stays["a"].count(True) + stays["b"].count(True) == left_over


def compressed(bnn: nn.Module, x, y, **how):
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=len(y))
    options = {name: how.pop(name) for name in ("price", "budget", "tolerance") if name in how}
    threshold = kasuri.compression.PerLayer(**({"tolerance": 0.0} | options))
    how = {"threshold": threshold, "validation": (x, y)} | how
    return kasuri.compress(elbo, x, **how)


def test_a_budget_out_of_reach_is_said() -> None:
    bnn, x = convolution()
    y = torch.zeros(5, dtype=torch.long)
    _, report = compressed(bnn, x, y, budget=0, structure="rows")
    assert report.notes == (f"{report.after.nonzero} are left, the budget was 0",)


def test_a_budget_counts_weights_that_are_not_zero_yet() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 3))
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.05, noise=0.0))
    with torch.no_grad():
        bnn[0].posteriors.weight.loc[:, 10:] *= 1e-3
        bnn[2].posteriors.weight.loc *= 20.0
    x = torch.randn(400, 20)
    y = kasuri.collapse(bnn)(x).argmax(1)
    small, report = compressed(bnn, x, y, threshold=0.01, keep_posterior=True)
    left_over = report.after.nonzero
    assert left_over < report.after.weights, "inputs nobody looks at"
    for budget in (left_over, left_over + 20, left_over - 20):
        _, again = compressed(small, x, y, budget=budget)
        assert (
            again.after.nonzero == left_over
            if budget >= left_over
            else again.after.nonzero <= budget
        )


def test_a_dead_head_saves_what_it_attends_with() -> None:
    bnn = kasuri.bayesianize(Attending(), kasuri.MeanField(scale=0.01, noise=0.0))
    attention = bnn.layer.self_attn
    with torch.no_grad():  # values of the second of eight heads, whose sizes are 2
        attention.posteriors.in_proj_weight.loc[34:36] = 0.0
        attention.out_proj.posteriors.weight.loc[:, 2:4] = 0.0
    _, report = kasuri.compress(bnn, torch.randn(5, 6, 4), threshold=1e-3)
    kept = {name: int(mask.sum()) for name, mask in report.masks.items()}
    assert kept["layer.self_attn.in_proj_weight"] == 3 * 14 * 16, "queries, keys and values"
    assert kept["layer.self_attn.out_proj.weight"] == 14 * 16


def test_all_inputs_but_one_may_go() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.05, noise=0.0))
    with torch.no_grad():
        bnn[0].posteriors.weight.loc[:, 1:] *= 1e-3
    x = torch.randn(300, 6)
    for how in ({"threshold": 0.05}, {"threshold": kasuri.compression.Gap()}, {"tolerance": 0.001}):
        _, report = compressed(bnn, x, (x[:, 0] > 0).long(), **how)
        assert report.masks["0.weight"].any(0).tolist() == [True] + [False] * 5
    _, report = compressed(bnn, x, (x[:, 0] > 0).long(), threshold=1e9, structure="columns")
    assert report.masks["0.weight"].any(0).tolist() == [True] + [False] * 5, "one always stays"


def test_the_loss_told_is_that_of_the_masked_network() -> None:
    bnn, _ = convolution()
    x = torch.randn(200, 1, 6, 6)
    y = kasuri.collapse(bnn)(x).argmax(1)
    for how in ({"tolerance": 0.05}, {"threshold": kasuri.compression.Loss(0.05)}, {"budget": 150}):
        small, report = compressed(bnn, x, y, **how)
        loss = float(nn.functional.cross_entropy(small(x), y).detach())
        assert report.loss == pytest.approx(loss, rel=1e-5)
