"""Relevance, counting and dropping, on every kind of layer."""

import copy
import json

import pytest
import torch
from torch import nn

import kasuri
from kasuri.testing import randomised
from tests.sparsity.common import dense


def linear(means, scales, **options):
    """A linear layer with these means and standard deviations."""
    means, scales = torch.tensor(means).double(), torch.tensor(scales).double()
    outs, ins = means.shape
    bnn = kasuri.bayesianize(nn.Linear(ins, outs).double(), kasuri.MeanField(), **options)
    bnn.posteriors.weight.loc.data = means
    bnn.posteriors.weight.log_scale.data = scales.log()
    return bnn


def test_ratios_are_those_of_the_definition():
    bnn = linear([[1.0, 2.0, 0.0], [0.0, 1.0, 0.0]], [[1.0, 1.0, 2.0], [1.0, 2.0, 0.5]])
    (found,) = kasuri.relevance(bnn).values()
    assert found.weights.tolist() == [[1, 4, 0], [0, 0.25, 0]]
    assert found.rows.tolist() == pytest.approx([5 / 6, 1 / 5.25])
    assert found.columns.tolist() == pytest.approx([1 / 2, 5 / 5, 0])


def test_group_precisions_weight_the_sums():
    bnn = linear(torch.randn(3, 4).tolist(), torch.rand(3, 4).tolist())
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.GroupARD(sweeps=40), num_data=3)
    q = bnn.posteriors.weight
    tau, gamma = elbo.priors[0].precisions(q)
    found = kasuri.relevance(elbo)["weight"]
    torch.testing.assert_close(found.rows, q.mean.square() @ gamma / (q.variance @ gamma))
    torch.testing.assert_close(found.columns, tau @ q.mean.square() / (tau @ q.variance))
    assert not torch.allclose(found.rows, kasuri.relevance(bnn)["weight"].rows)


def test_units_of_inputs_and_outputs_do_not_matter_under_a_group_prior():
    """Rows and columns scaled by constants: raw precisions change, ratios do not."""
    bnn = linear(torch.randn(3, 4).tolist(), torch.rand(3, 4).tolist())
    other = copy.deepcopy(bnn)
    by = torch.rand(3, 1).double().mul(4).exp() * torch.rand(1, 4).double().mul(4).exp()
    with torch.no_grad():
        other.posteriors.weight.loc.mul_(by)
        other.posteriors.weight.log_scale.add_(by.log())
    a, b = (
        kasuri.relevance(
            kasuri.ELBO(n, kasuri.Gaussian(1.0), kasuri.GroupARD(sweeps=60), num_data=3)
        )
        for n in (bnn, other)
    )
    for part in ("weights", "rows", "columns"):
        torch.testing.assert_close(getattr(a["weight"], part), getattr(b["weight"], part))
    plain = [kasuri.relevance(n)["weight"].rows for n in (bnn, other)]
    assert not torch.allclose(*plain)


def test_each_way_of_dropping_by_itself():
    means = [[1.0, 0.1, 0.0], [0.0, 0.1, 0.0], [1.0, 1.0, 1.0]]
    bnn = linear(means, [[0.5] * 3] * 3)

    def left(**options):
        every = dict.fromkeys(("weights", "rows", "columns"), False) | options
        sparse, report = kasuri.sparsify(bnn, 0.1, **every)
        assert report == kasuri.sparsity(bnn, 0.1, **every)
        return (sparse.posteriors.weight.variance > 0).int().tolist()

    assert left(weights=True) == [[1, 0, 0], [0, 0, 0], [1, 1, 1]]
    assert left(rows=True) == [[1, 1, 1], [0, 0, 0], [1, 1, 1]]
    assert left(columns=True) == [[1, 1, 1]] * 3
    assert left(rows=True, columns=True, weights=True) == [[1, 0, 0], [0, 0, 0], [1, 1, 1]]


def test_noise_of_dropped_groups_does_not_count_against_the_others():
    """90 dead inputs, whose weights are all noise, must not drown the outputs of 10 live ones."""
    means, scales = torch.zeros(5, 100), torch.ones(5, 100)
    means[:4, :10], scales[:, :10] = 0.5, 0.1
    bnn = linear(means.tolist(), scales.tolist())
    assert (kasuri.relevance(bnn)["weight"].rows < 0.05).all()
    (layer,) = kasuri.sparsity(bnn, weights=False).layers
    assert (layer.rows_left, layer.columns_left, layer.weights_left) == (4, 10, 40)


def test_a_network_of_noise_goes_as_a_whole_and_one_of_signal_stays():
    noise = kasuri.bayesianize(nn.Linear(6, 4), kasuri.MeanField(scale=30.0))
    assert kasuri.sparsity(noise).total.weights_left == 0
    signal = kasuri.bayesianize(nn.Linear(6, 4), kasuri.MeanField(scale=1e-6))
    sparse, report = kasuri.sparsify(signal)
    assert report.total.dropped == 0
    assert type(sparse.posteriors.weight) is type(signal.posteriors.weight)


class Everything(nn.Module):
    """Embedding, LSTM, grouped convolution, attention and a tied output."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.lstm = nn.LSTM(6, 6, batch_first=True)
        self.conv = nn.Conv1d(6, 6, 3, padding=1, groups=2)
        self.mix = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        h, _ = self.lstm(self.embed(ids))
        h = self.conv(h.mT).mT
        return self.head(self.mix(h, h, h)[0])


@pytest.mark.parametrize("family", [kasuri.MeanField(scale=0.3), kasuri.KTied(rank=2, scale=0.3)])
@pytest.mark.parametrize("blocks", [False, True])
def test_every_layer_is_sparse_exactly_and_in_files(tmp_path, family, blocks):
    bnn = kasuri.bayesianize(Everything(), family, blocks=blocks)
    sparse, report = kasuri.sparsify(bnn, 0.5, rows=False, columns=False)
    assert 0 < report.total.weights_left < report.total.weights
    assert {layer.name for layer in report.layers} >= {"embed.weight", "conv.weight"}
    assert all(layer.weights_left < layer.weights for layer in report.layers)
    shapes = {layer.name: layer.shape for layer in report.layers}
    assert shapes["conv.weight"] == (2, 3, 9)
    assert shapes["lstm.weight_hh_l0"] == ((4, 6, 6) if blocks else (24, 6))
    assert sparse.embed.posteriors.weight is sparse.head.posteriors.weight
    plain = kasuri.collapse(sparse)
    counted = {name: int((p != 0).sum()) for name, p in plain.named_parameters()}
    drawn = {
        name: int((p != 0).sum())
        for name, p in kasuri.collapse(sparse, "sample").named_parameters()
    }
    for layer in report.layers:
        assert counted[layer.name] == drawn[layer.name] == layer.weights_left
    ids = torch.randint(7, (2, 5))
    torch.testing.assert_close(sparse.eval()(ids), plain.eval()(ids))
    kasuri.save(sparse, tmp_path / "m")
    again = kasuri.load(tmp_path / "m", Everything())
    assert kasuri.sparsity(again, 0.5, rows=False, columns=False) == report
    assert torch.equal(again.eval()(ids), sparse(ids))
    a, b = (kasuri.predict(n, ids, samples=3, seed=1).mean for n in (sparse, again))
    assert torch.equal(a, b)
    elbos = [
        kasuri.ELBO(n, kasuri.Categorical(), kasuri.ARD(), num_data=5) for n in (sparse, again)
    ]
    assert torch.equal(elbos[0].kl(), elbos[1].kl())


def test_a_sparse_network_trains_on_evaluates_and_gets_sparser():
    x, y = torch.randn(60, 5), torch.randint(3, (60,))
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    bnn = kasuri.bayesianize(net, kasuri.KTied(rank=1, scale=0.3), estimator="local")
    sparse, first = kasuri.sparsify(bnn, 0.5)
    assert sparse[0].estimator is kasuri.local
    assert all((q.mean == 0).sum() > 0 for n, q in kasuri.named_posteriors(sparse) if "weight" in n)
    fitted = kasuri.fit(sparse, (x, y), prior=kasuri.GroupARD(), temperature=1.0, epochs=2, seed=0)
    dead = {n: q.mean == 0 for n, q in kasuri.named_posteriors(sparse) if "weight" in n}
    assert sum(int(mask.sum()) for mask in dead.values()) == first.total.weights - (
        first.total.weights_left
    )
    assert fitted.evaluate((x, y), samples=5)["accuracy"] >= 0
    for estimator in ("shared", "local", "flipout", "mean"):
        with kasuri.using(sparse, estimator):
            assert torch.isfinite(sparse(x)).all()
    sparser, second = kasuri.sparsify(fitted.objective, 2.0)
    assert second.total.weights_left < first.total.weights_left
    assert type(sparser[0].posteriors.weight.base).__name__ == "KTiedPosterior"
    assert kasuri.sparsity(sparser, 0.0).total.weights_left == second.total.weights_left


def test_the_given_network_is_not_touched_and_the_copy_is_free():
    bnn = kasuri.bayesianize(nn.Linear(6, 4), kasuri.MeanField(scale=0.5))
    bnn.posteriors.weight.log_scale.requires_grad_(False)
    bnn(torch.randn(2, 6)).sum().backward()  # peers cannot be copied after a forward pass
    before = {k: v.clone() for k, v in bnn.state_dict().items()}
    sparse, _ = kasuri.sparsify(bnn, 0.5)
    assert all(torch.equal(before[k], v) for k, v in bnn.state_dict().items())
    q = sparse.posteriors.weight
    assert q.base.loc is not bnn.posteriors.weight.loc
    assert not q.base.log_scale.requires_grad
    copy.deepcopy(sparse)


def test_correlated_posteriors_draw_whole_weights_afterwards():
    bnn = kasuri.bayesianize(
        nn.Linear(4, 3).double(), lambda w: dense(*w.shape) if w.dim() > 1 else kasuri.Point()(w)
    )
    sparse, report = kasuri.sparsify(bnn, 1.0)
    assert 0 < report.total.weights_left < 12
    assert sparse.estimator is kasuri.shared
    with kasuri.using(sparse, "shared"):
        y = sparse(torch.randn(5, 4).double())
    assert y.shape == (5, 3)
    mn = kasuri.bayesianize(nn.Linear(4, 3), kasuri.MatrixNormal(scale=0.3), estimator="local")
    sparse, report = kasuri.sparsify(mn, 1.0)
    assert report.total.weights_left < 12
    assert sparse.estimator is kasuri.shared
    elbo = kasuri.ELBO(sparse, kasuri.Gaussian(1.0), kasuri.GroupARD(), num_data=3)
    elbo(torch.randn(5, 4), torch.randn(5, 3)).loss.backward()


def test_points_have_no_noise_and_zeros_are_zeros(tmp_path):
    net = nn.Linear(3, 2)
    with torch.no_grad():
        net.weight[0] = 0.0
    bnn = kasuri.bayesianize(net, kasuri.Point())
    (found,) = kasuri.relevance(bnn).values()
    assert found.weights.tolist() == [[0.0] * 3, [float("inf")] * 3]
    sparse, report = kasuri.sparsify(bnn)
    assert (report.total.weights_left, report.total.rows_left) == (3, 1)
    assert torch.equal(sparse(torch.ones(3)), net(torch.ones(3)))


def test_report_is_ready_for_json_and_people():
    bnn = kasuri.bayesianize(
        nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 2)), kasuri.MeanField(scale=0.2)
    )
    report = kasuri.sparsity(bnn, 0.3)
    told = json.loads(json.dumps(report.as_dict()))
    assert told["threshold"] == 0.3
    assert [layer["name"] for layer in told["layers"]] == ["0.weight", "2.weight"]
    assert told["layers"][0]["shape"] == [40, 30]
    for key in ("weights", "weights_left", "rows", "rows_left", "columns", "columns_left"):
        assert told["total"][key] == sum(layer[key] for layer in told["layers"])
    assert told["total"]["dropped"] == pytest.approx(1 - report.total.weights_left / 1280)
    lines = report.table().splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split()[:2] == ["0.weight", "1,200"]
    assert str(report) == report.table()


@pytest.mark.parametrize("call", [kasuri.sparsity, kasuri.sparsify])
def test_refusals(call):
    bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField())
    for threshold in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="0 or more"):
            call(bnn, threshold)
    with pytest.raises(ValueError, match="nothing could be dropped"):
        call(bnn, weights=False, rows=False, columns=False)
    with pytest.raises(ValueError, match="bayesianize"):
        call(nn.Linear(3, 2))
    vectors = kasuri.bayesianize(
        nn.ParameterList([nn.Parameter(torch.ones(3))]), kasuri.MeanField()
    )
    with pytest.raises(ValueError, match="vectors have no rows"):
        call(vectors)
    bnn.posteriors.weight.loc.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="did not train"):
        call(bnn)


def test_families_of_ones_own_are_masked_and_named_when_unknown(tmp_path):
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Mine(kasuri.MeanField):
        def __call__(self, weight):
            return randomised(kasuri.MeanField(), tuple(weight.shape), torch.float32)

    bnn = kasuri.bayesianize(nn.Linear(6, 4), Mine())
    sparse, _ = kasuri.sparsify(bnn, 1.0)
    kasuri.save(sparse, tmp_path / "m")
    with pytest.raises(kasuri.FileError, match=r"families=\[Mine\]"):
        kasuri.load(tmp_path / "m", nn.Linear(6, 4))
    again = kasuri.load(tmp_path / "m", nn.Linear(6, 4), families=[Mine])
    assert torch.equal(again.posteriors.weight.mean, sparse.posteriors.weight.mean)
    function = kasuri.bayesianize(nn.Linear(6, 4), lambda w: Mine()(w))
    sparse, _ = kasuri.sparsify(function, 1.0)
    with pytest.raises(ValueError, match="plain function"):
        kasuri.save(sparse, tmp_path / "m")
