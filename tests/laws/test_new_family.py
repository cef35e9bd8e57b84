"""A structured family that kasuri has not, defined here and nowhere else: everything works with it.

Variances are a product of rank one plus a constant, and it draws outputs in its own way.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import kasuri
import kasuri.testing
from kasuri.numerics.safe import LOG_CEILING, capped_exp
from kasuri.posteriors.base import Elementwise, Op, noisy_output
from kasuri.posteriors.mean_field import MatrixFamily
from kasuri.sklearn import BayesianRegressor

TOP = LOG_CEILING / 2


class RankOnePlusConstantPosterior(Elementwise):
    """Variances r cᵀ + s², r = exp(2 log_rows) and so on."""

    def __init__(self, loc: Tensor, rows: Tensor, columns: Tensor, constant: Tensor) -> None:
        super().__init__()
        self.loc = nn.Parameter(loc)
        self.log_rows = nn.Parameter(rows)  # (*blocks, out)
        self.log_columns = nn.Parameter(columns)  # (*blocks, in)
        self.log_constant = nn.Parameter(constant)  # (*blocks, 1)

    def _factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Standard deviations (*blocks, 1, out), (*blocks, 1, in) and (*blocks, 1, 1)."""
        raw = self.log_rows, self.log_columns, self.log_constant
        rows, columns, constant = (capped_exp(logs, TOP).unsqueeze(-2) for logs in raw)
        return rows, columns, constant

    @property
    def variance(self) -> Tensor:
        rows, columns, constant = self._factors()
        return (rows.mT * columns).square() + constant.square()

    @property
    def scale(self) -> Tensor:
        return self.variance.clamp(min=1e-30).sqrt()

    def push(self, op: Op, x: Tensor) -> Tensor:
        """Two extra output features in the place of as many as there are."""
        rows, columns, constant = self._factors()
        features = torch.cat([columns, torch.ones_like(columns)], -2).square()
        mixing = torch.cat([rows, constant.expand_as(rows)], -2).square()
        return noisy_output(op, x, self.loc, op.mix(op(x.square(), features), mixing))


@dataclass(frozen=True, kw_only=True)
class RankOnePlusConstant(MatrixFamily):
    """Independent weights whose variances are a product of rows and columns, plus a constant."""

    def __call__(self, weight: Tensor) -> RankOnePlusConstantPosterior:
        self.require_matrix(weight)
        *blocks, outs, ins = weight.shape
        half = self.scale / math.sqrt(2)

        def logs(size: int, middle: float) -> Tensor:
            return middle + 0.3 * self.noise * weight.new_empty(*blocks, size).normal_()

        rows, columns = (logs(size, math.log(half) / 2) for size in (outs, ins))
        constant = torch.full_like(rows[..., :1], math.log(half))
        return RankOnePlusConstantPosterior(self.initial_mean(weight), rows, columns, constant)


FAMILY = RankOnePlusConstant(scale=0.05)


def test_it_obeys_every_law():
    kasuri.testing.check_family(FAMILY)


@pytest.fixture(scope="module")
def fitted():
    torch.manual_seed(0)
    x = torch.randn(200, 6)
    y = (x[:, 0] > 0).long()
    net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
    bnn = kasuri.bayesianize(net, FAMILY, estimator="local")
    return kasuri.fit(bnn, (x, y), epochs=30, learning_rate=0.02, seed=0), x, y


def test_it_trains_predicts_and_is_exported(fitted):
    pytest.importorskip("onnxruntime")
    trained, x, y = fitted
    assert kasuri.evaluate(trained, (x, y), samples=20)["accuracy"] > 0.9
    assert kasuri.export(trained, x[:4], kind="variance").error < 1e-5


@pytest.mark.parametrize("keep_posterior", [False, True])
def test_it_is_compressed_with_or_without_its_posterior(fitted, keep_posterior):
    trained, x, _ = fitted
    bnn = kasuri.bayesianize(kasuri.collapse(trained.net), FAMILY)
    with torch.no_grad():
        bnn[0].posteriors.weight.loc[3:] = 0.0  # nine hidden units are noise
        bnn[0].posteriors.bias.loc[3:] = 0.0
        bnn[2].posteriors.weight.loc[:, 3:] = 0.0
    small, report = kasuri.compress(bnn, x[:8], threshold=0.05, keep_posterior=keep_posterior)
    assert small[0].out_features == 3
    torch.testing.assert_close(
        small.eval()(x), kasuri.collapse(bnn).eval()(x), rtol=1e-4, atol=1e-5
    )
    if keep_posterior:
        # it states no part of itself, so what is left are independent normals of the same spread
        kept = dict(kasuri.named_posteriors(small))["0.weight"]
        torch.testing.assert_close(kept.scale, bnn[0].posteriors.weight.scale[:3])
        assert "0.weight" in str(report)


def test_it_has_a_row_in_the_report(tmp_path):
    pytest.importorskip("tyro")  # of the experiments, which the core does not need
    from experiments.networks import MLP
    from experiments.report import compare, markdown_table, read
    from experiments.running import Plan, run_all
    from experiments.supervised import Supervised

    wines = Supervised(
        name="mine/wines",
        variant="rank-one-plus-constant",
        title="wines",
        data="wine",
        network=MLP((8,)),
        family=FAMILY,
        epochs=2,
        samples=3,
    )
    run_all([wines], [0], Plan(results=tmp_path, runs=tmp_path / "runs", show=False))
    results, problems = read(tmp_path)
    assert not problems
    assert "RankOnePlusConstant" in results[0].settings["family"]
    assert "| rank-one-plus-constant | 1 |" in markdown_table(compare(results))


@pytest.mark.parametrize("posterior", [FAMILY, "rank-one-plus-constant"], ids=["family", "name"])
def test_tables_are_fitted_with_it(posterior):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    y = x[:, 0] + 0.1 * rng.normal(size=120)
    model = BayesianRegressor(
        posterior=posterior, max_epochs=40, temperature=0.1, random_state=0
    ).fit(x, y)
    assert model.score(x, y) > 0.8
