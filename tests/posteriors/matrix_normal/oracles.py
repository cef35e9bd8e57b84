"""Dense covariances written out from the parameters, for comparison with everything clever."""

import torch
from torch import Tensor, nn

import kasuri
from kasuri.numerics.triangular import unfold
from kasuri.posteriors.full_normal import FullNormalPosterior
from kasuri.posteriors.matrix_normal import (
    KroneckerPosterior,
    MatrixNormalDiagonalPosterior,
    ScaledMatrixNormalPosterior,
)
from kasuri.posteriors.sides import DiagonalSide, FullSide, LowRankSide, Side


def side_covariance(side: Side) -> Tensor:
    """(*blocks, n, n), bounded like the side."""
    d = torch.diag_embed(side.log_scale.exp())
    if isinstance(side, FullSide):
        unit = unfold(side.lower)
        dense = unit @ d @ d @ unit.mT
    elif isinstance(side, LowRankSide):
        dense = d @ d + d @ side.loadings @ side.loadings.mT @ d
    else:
        assert isinstance(side, DiagonalSide)
        dense = d @ d
    if side.ceiling is None:
        return dense
    deviation = dense.diagonal(dim1=-2, dim2=-1).sqrt()
    shrink = torch.diag_embed(side.ceiling / (side.ceiling + deviation))
    return shrink @ dense @ shrink


def _blocks(tensor: Tensor, dimensions: int) -> Tensor:
    return tensor.reshape(-1, *tensor.shape[tensor.dim() - dimensions :])


def covariance(q) -> Tensor:
    """Of W.reshape(-1)."""
    if isinstance(q, FullNormalPosterior):
        return torch.block_diag(*_blocks(side_covariance(q.side), 2))
    assert isinstance(q, KroneckerPosterior)
    rows, columns = (_blocks(side_covariance(side), 2) for side in (q.rows, q.columns))
    dense = [torch.kron(u, v) for u, v in zip(rows, columns, strict=True)]
    if isinstance(q, MatrixNormalDiagonalPosterior):
        extra = _blocks(q.extra_scale.square(), 2)
        dense = [k + torch.diag(d.reshape(-1)) for k, d in zip(dense, extra, strict=True)]
    if isinstance(q, ScaledMatrixNormalPosterior):
        scales = _blocks(q.outer_scale, 2)
        dense = [
            torch.diag(s.reshape(-1)) @ (k + torch.eye(len(k))) @ torch.diag(s.reshape(-1))
            for k, s in zip(dense, scales, strict=True)
        ]
    return torch.block_diag(*dense)


def dense_normal(q) -> torch.distributions.MultivariateNormal:
    return torch.distributions.MultivariateNormal(q.mean.reshape(-1), covariance(q))


def randomised_linear(family):
    """(Bayesian linear layer 4 → 3 with shaken parameters, its posteriors, an input), in float64."""
    torch.manual_seed(1)
    bnn = kasuri.bayesianize(nn.Linear(4, 3).double(), family, estimator="local")
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    q, b = bnn.posteriors.weight, bnn.posteriors.bias
    return bnn, q, b, torch.randn(4, dtype=torch.float64)


def assert_bounded(q, bound):
    """Marginal standard deviations stay below the bound, and near it, whatever the parameters do."""
    with torch.no_grad():
        for name, parameter in q.named_parameters():
            if name != "loc":
                parameter.fill_(2.0)
    assert (q.variance.sqrt() < bound).all()
    assert (q.variance.sqrt() > bound / 2).all()
