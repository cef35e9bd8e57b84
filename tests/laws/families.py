"""Every family of kasuri, under the options that change its mathematics. Add a family: one line."""

import kasuri

FAMILIES = {
    "mean-field": kasuri.MeanField(),
    "mean-field, bounded": kasuri.MeanField(max_scale=2.0),
    "1-tied": kasuri.KTied(rank=1),
    "2-tied": kasuri.KTied(rank=2),
    "3-tied": kasuri.KTied(rank=3),
    "2-tied, bounded": kasuri.KTied(rank=2, max_scale=2.0),
    "matrix normal": kasuri.MatrixNormal(),
    "matrix normal, bounded": kasuri.MatrixNormal(max_scale=2.0),
    "matrix normal, diagonal": kasuri.MatrixNormal(rows="diagonal", columns="diagonal"),
    "matrix normal, rank 1": kasuri.MatrixNormal(rows=1, columns=1),
    "matrix normal, mixed": kasuri.MatrixNormal(rows="diagonal", columns=1, max_scale=2.0),
    "matrix normal, rank-1 diagonal": kasuri.MatrixNormalDiagonal(),
    "matrix normal, rank-1 diagonal, bounded": kasuri.MatrixNormalDiagonal(
        columns=1, max_scale=2.0
    ),
    "matrix normal, free diagonal": kasuri.MatrixNormalDiagonal(diagonal="free"),
    "matrix normal, free diagonal, bounded": kasuri.MatrixNormalDiagonal(
        diagonal="free", rows="diagonal", max_scale=2.0
    ),
    "scaled matrix normal": kasuri.ScaledMatrixNormal(),
    "scaled matrix normal, bounded": kasuri.ScaledMatrixNormal(rows=1, max_scale=2.0),
    "full normal": kasuri.FullNormal(),
    "full normal, bounded": kasuri.FullNormal(max_scale=2.0),
    "radial": kasuri.Radial(),
    "radial, columns": kasuri.Radial(grouping="column", concentration="group"),
    "radial, both sides": kasuri.Radial(grouping="double"),
    "radial, column scales": kasuri.Radial(grouping="double", double="scales"),
    "point": kasuri.Point(),
}

BOUNDED_ENTROPY = {name for name in FAMILIES if "free diagonal" in name}
"""Their entropy is a lower bound whose gradient takes eigenvectors as constants, which finite differences do
not: both are compared with what they should be in tests/numerics/test_kronecker.py."""
