"""A family of one's own: one class of options, one posterior, and nothing else in the package to edit."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import kasuri
from kasuri.numerics.safe import LOG_CEILING, capped_exp
from kasuri.posteriors.base import Elementwise, Op, noisy_output
from kasuri.posteriors.mean_field import MatrixFamily
from kasuri.testing import check_family

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


def test_it_obeys_the_laws_of_every_family() -> None:
    check_family(RankOnePlusConstant())


def test_the_low_rank_push_has_the_variance_of_the_plain_one() -> None:
    net = nn.Sequential(nn.Conv1d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(18, 3)).double()
    bnn = kasuri.bayesianize(net, RankOnePlusConstant(scale=0.3), estimator="local")
    x = torch.randn(1, 4, 5, dtype=torch.float64)
    draws = {}
    for name, push in (("own", RankOnePlusConstantPosterior.push), ("plain", Elementwise.push)):
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            for q in (bnn[0].posteriors.weight, bnn[2].posteriors.weight):
                q.__dict__["push"] = push.__get__(q)
            draws[name] = bnn(x)
    torch.testing.assert_close(draws["own"], draws["plain"])
