"""`compress` without an example: weights, rows and columns of every matrix by themselves, set to 0."""

import copy
import json

import pytest
import torch
from torch import nn

import kasuri
from kasuri.compression.importance import matrices_of, peel, quotient, signal_and_noise
from tests.priors.relevance_examples import dense

EVERYTHING = ("weights", "rows", "columns")


def linear(means, scales):
    """A linear layer with these means and standard deviations."""
    means, scales = torch.tensor(means).double(), torch.tensor(scales).double()
    outs, ins = means.shape
    bnn = kasuri.bayesianize(nn.Linear(ins, outs).double(), kasuri.MeanField())
    bnn.posteriors.weight.loc.data = means
    bnn.posteriors.weight.log_scale.data = scales.log()
    return bnn


def ratios(model, criterion="snr"):
    """Ratios of weights, rows and columns, nothing being taken away."""
    (weight,) = matrices_of(model).values()
    parts = signal_and_noise("weight", weight, criterion)
    rows, columns = peel(parts, rows=False)
    return quotient(*parts[0]), rows, columns


def left(bnn, threshold, structure):
    sparse, report = kasuri.compress(bnn, structure=structure, threshold=threshold)
    kept = sparse.posteriors.weight.variance > 0
    assert int(kept.sum()) == report.total.weights_left
    return kept.int().tolist()


def test_ratios_are_those_of_the_definition():
    bnn = linear([[1.0, 2.0, 0.0], [0.0, 1.0, 0.0]], [[1.0, 1.0, 2.0], [1.0, 2.0, 0.5]])
    weights, rows, columns = ratios(bnn)
    assert weights.tolist() == [[1, 4, 0], [0, 0.25, 0]]
    assert rows.tolist() == pytest.approx([5 / 6, 1 / 5.25])
    assert columns.tolist() == pytest.approx([1 / 2, 5 / 5, 0])


def test_group_precisions_weight_the_sums():
    bnn = linear(torch.randn(3, 4).tolist(), torch.rand(3, 4).tolist())
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.GroupARD(sweeps=40), num_data=3)
    q = bnn.posteriors.weight
    tau, gamma = elbo.priors[0].precisions(q)
    _, rows, columns = ratios(elbo, "group_ard")
    torch.testing.assert_close(rows, q.mean.square() @ gamma / (q.variance @ gamma))
    torch.testing.assert_close(columns, tau @ q.mean.square() / (tau @ q.variance))
    assert not torch.allclose(rows, ratios(bnn)[1])


def test_units_of_inputs_and_outputs_do_not_matter_under_a_group_prior():
    """Rows and columns scaled by constants: raw precisions change, ratios do not."""
    bnn = linear(torch.randn(3, 4).tolist(), torch.rand(3, 4).tolist())
    other = copy.deepcopy(bnn)
    by = torch.rand(3, 1).double().mul(4).exp() * torch.rand(1, 4).double().mul(4).exp()
    with torch.no_grad():
        other.posteriors.weight.loc.mul_(by)
        other.posteriors.weight.log_scale.add_(by.log())
    elbos = [
        kasuri.ELBO(net, kasuri.Gaussian(1.0), kasuri.GroupARD(sweeps=60), num_data=3)
        for net in (bnn, other)
    ]
    for a, b in zip(*(ratios(elbo, "group_ard") for elbo in elbos), strict=True):
        torch.testing.assert_close(a, b)
    assert not torch.allclose(ratios(bnn)[1], ratios(other)[1])


def test_each_way_of_dropping_by_itself():
    bnn = linear([[1.0, 0.1, 0.0], [0.0, 0.1, 0.0], [1.0, 1.0, 1.0]], [[0.5] * 3] * 3)
    assert left(bnn, 0.1, "weights") == [[1, 0, 0], [0, 0, 0], [1, 1, 1]]
    assert left(bnn, 0.1, "rows") == [[1, 1, 1], [0, 0, 0], [1, 1, 1]]
    assert left(bnn, 0.1, "columns") == [[1, 1, 1]] * 3
    assert left(bnn, 0.1, EVERYTHING) == [[1, 0, 0], [0, 0, 0], [1, 1, 1]]


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
    sparse, report = kasuri.compress(bnn, structure="weights", threshold=0.5)
    assert 0 < report.total.weights_left < report.total.weights
    matrices = {matrix.name: matrix for matrix in report.matrices}
    assert "head.weight" not in matrices, "a tied matrix counts once"
    assert matrices["conv.weight"].shape == (2, 3, 9)
    assert matrices["lstm.weight_hh_l0"].shape == ((4, 6, 6) if blocks else (24, 6))
    assert sparse.embed.posteriors.weight is sparse.head.posteriors.weight
    plain, drawn = kasuri.collapse(sparse), kasuri.collapse(sparse, "sample")
    for name, matrix in matrices.items():
        assert matrix.weights_left < matrix.weights
        for net in (plain, drawn):
            assert int(net.get_parameter(name).count_nonzero()) == matrix.weights_left
    ids = torch.randint(7, (2, 5))
    torch.testing.assert_close(sparse.eval()(ids), plain.eval()(ids))
    other, _ = kasuri.compress(bnn, structure="weights", threshold=0.5, keep_posterior=False)
    assert torch.equal(other(ids), plain(ids))
    kasuri.save(sparse, tmp_path / "m")
    again = kasuri.load(tmp_path / "m", Everything())
    assert kasuri.compress(again, structure="weights", threshold=0.5)[1].matrices == report.matrices
    assert torch.equal(again.eval()(ids), sparse(ids))
    elbos = [
        kasuri.ELBO(n, kasuri.Categorical(), kasuri.ARD(), num_data=5) for n in (sparse, again)
    ]
    assert torch.equal(elbos[0].kl(), elbos[1].kl())


def test_a_sparse_network_trains_on_evaluates_and_gets_sparser():
    x, y = torch.randn(60, 5), torch.randint(3, (60,))
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    bnn = kasuri.bayesianize(net, kasuri.KTied(rank=1, scale=0.3), estimator="local")
    sparse, first = kasuri.compress(bnn, structure=EVERYTHING, threshold=0.5)
    fitted = kasuri.fit(sparse, (x, y), prior=kasuri.GroupARD(), temperature=1.0, epochs=2, seed=0)
    zeros = [int((q.mean == 0).sum()) for n, q in kasuri.named_posteriors(sparse) if "weight" in n]
    assert sum(zeros) == first.total.weights - first.total.weights_left
    assert min(zeros) > 0
    assert fitted.evaluate((x, y), samples=5)["accuracy"] >= 0
    for estimator in ("shared", "local", "flipout", "mean"):
        with kasuri.using(sparse, estimator):
            assert torch.isfinite(sparse(x)).all()
    options = {"criterion": "group_ard", "structure": EVERYTHING}
    sparser, second = kasuri.compress(fitted.objective, threshold=2.0, **options)
    assert second.total.weights_left < first.total.weights_left
    assert type(sparser[0].posteriors.weight.base).__name__ == "KTiedPosterior"
    _, third = kasuri.compress(sparser, structure=EVERYTHING, threshold=0.0)
    assert third.total.weights_left == second.total.weights_left


def test_correlated_posteriors_draw_whole_weights_afterwards():
    bnn = kasuri.bayesianize(
        nn.Linear(4, 3).double(), lambda w: dense(*w.shape) if w.dim() > 1 else kasuri.Point()(w)
    )
    sparse, report = kasuri.compress(bnn, structure="weights", threshold=1.0)
    assert 0 < report.total.weights_left < 12
    with kasuri.using(sparse, "shared"):
        assert sparse(torch.randn(5, 4).double()).shape == (5, 3)
    family = kasuri.MatrixNormal(scale=0.3)
    mn = kasuri.bayesianize(nn.Linear(4, 3), family, estimator="local")
    sparse, report = kasuri.compress(mn, structure="weights", threshold=1.0)
    assert report.total.weights_left < 12
    elbo = kasuri.ELBO(sparse, kasuri.Gaussian(1.0), kasuri.GroupARD(), num_data=3)
    elbo(torch.randn(5, 4), torch.randn(5, 3)).loss.backward()


def test_points_have_no_noise_and_zeros_are_zeros():
    net = nn.Linear(3, 2)
    with torch.no_grad():
        net.weight[0] = 0.0
    bnn = kasuri.bayesianize(net, kasuri.Point())
    assert ratios(bnn)[0].tolist() == [[0.0] * 3, [float("inf")] * 3]
    sparse, report = kasuri.compress(bnn, structure=EVERYTHING, threshold=0.05)
    assert (report.total.weights_left, report.total.rows_left) == (3, 1)
    assert torch.equal(sparse(torch.ones(3)), net(torch.ones(3)))


def test_report_is_ready_for_json_and_people():
    net = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 2))
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.2))
    _, report = kasuri.compress(bnn, structure="weights", threshold=0.3)
    told = json.loads(json.dumps(report.as_dict()))
    assert [matrix["name"] for matrix in told["matrices"]] == ["0.weight", "2.weight"]
    assert told["matrices"][0]["shape"] == [40, 30]
    for key in ("weights", "weights_left", "rows", "rows_left", "columns", "columns_left"):
        assert getattr(report.total, key) == sum(one[key] for one in told["matrices"])
    assert report.total.dropped == pytest.approx(1 - report.total.weights_left / 1280)
    row = next(line for line in str(report).splitlines() if line.startswith("0.weight"))
    assert row.split()[:2] == ["0.weight", "1,200"]


def test_refusals():
    bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField())
    for threshold in (-0.1, float("nan"), float("inf"), kasuri.compression.Gap(), None):
        with pytest.raises(ValueError, match="threshold"):
            kasuri.compress(bnn, structure="weights", threshold=threshold)
    for structure in ("either", (), ("both", "rows")):
        with pytest.raises(ValueError, match="structure"):
            kasuri.compress(bnn, structure=structure, threshold=0.05)
    with pytest.raises(ValueError, match="bayesianize"):
        kasuri.compress(nn.Linear(3, 2), structure="weights", threshold=0.05)
    vectors = kasuri.bayesianize(
        nn.ParameterList([nn.Parameter(torch.ones(3))]), kasuri.MeanField()
    )
    with pytest.raises(ValueError, match="vector"):
        kasuri.compress(vectors, structure="weights", threshold=0.05)
    bnn.posteriors.weight.loc.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"'weight'.*did not train"):
        kasuri.compress(bnn, structure="weights", threshold=0.05)


def test_families_of_ones_own_are_masked(tmp_path):
    function = kasuri.bayesianize(nn.Linear(6, 4), lambda w: kasuri.MeanField(scale=0.2)(w))
    sparse, report = kasuri.compress(function, structure="weights", threshold=1.0)
    assert 0 < report.total.weights_left < 24
    with pytest.raises(ValueError, match="plain function"):
        kasuri.save(sparse, tmp_path / "m")
