"""Every family of weft, under the options that change its mathematics. Add a family: one line."""

import weft

FAMILIES = {
    "mean-field": weft.MeanField(),
    "mean-field, bounded": weft.MeanField(max_scale=2.0),
    "1-tied": weft.KTied(rank=1),
    "2-tied": weft.KTied(rank=2),
    "3-tied": weft.KTied(rank=3),
    "2-tied, bounded": weft.KTied(rank=2, max_scale=2.0),
    "matrix normal": weft.MatrixNormal(),
    "matrix normal, bounded": weft.MatrixNormal(max_scale=2.0),
    "matrix normal, diagonal": weft.MatrixNormal(rows="diagonal", columns="diagonal"),
    "matrix normal, rank 1": weft.MatrixNormal(rows=1, columns=1),
    "matrix normal, mixed": weft.MatrixNormal(rows="diagonal", columns=1, max_scale=2.0),
    "matrix normal, rank-1 diagonal": weft.MatrixNormalDiagonal(),
    "matrix normal, rank-1 diagonal, bounded": weft.MatrixNormalDiagonal(columns=1, max_scale=2.0),
    "matrix normal, free diagonal": weft.MatrixNormalDiagonal(diagonal="free"),
    "matrix normal, free diagonal, bounded": weft.MatrixNormalDiagonal(
        diagonal="free", rows="diagonal", max_scale=2.0
    ),
    "scaled matrix normal": weft.ScaledMatrixNormal(),
    "scaled matrix normal, bounded": weft.ScaledMatrixNormal(rows=1, max_scale=2.0),
    "full normal": weft.FullNormal(),
    "full normal, bounded": weft.FullNormal(max_scale=2.0),
    "radial": weft.Radial(),
    "radial, columns": weft.Radial(grouping="column", factors=2, concentration="group"),
    "radial, weibull": weft.Radial(radius="weibull"),
    "radial, both sides": weft.Radial(grouping="double", rescale=True),
    "radial, column scales": weft.Radial(grouping="double", double="scales", radius="gamma"),
    "point": weft.Point(),
}

BOUNDED_ENTROPY = {name for name in FAMILIES if "free diagonal" in name}
"""Their entropy is a lower bound whose gradient takes eigenvectors as constants, which finite
differences do not: both are compared with what they should be in tests/matrix_normal/test_bounds.py."""
