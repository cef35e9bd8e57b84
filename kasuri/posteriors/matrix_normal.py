"""Matrix normals: W = M + R X Cᵀ, X independent noise; rows covary as U = R Rᵀ, columns as V = C Cᵀ.

The covariance of all weights is the Kronecker product of U and V and is never formed. Three families:

| family                 | weight                     | entropy                                              |
|------------------------|----------------------------|------------------------------------------------------|
| `MatrixNormal`         | M + R X Cᵀ                 | exact, O(out² + in²)                                 |
| `MatrixNormalDiagonal` | M + R X Cᵀ + √D ∘ E        | exact for D of rank one, else a lower bound; O(n³)   |
| `ScaledMatrixNormal`   | M + S ∘ (R X Cᵀ + E)       | exact, O(out³ + in³)                                 |

Parameters: 1 per weight, those of the two sides (`posteriors.sides`), and those of D or S. Exact for all:
sampling, marginal variances, KL to any prior whose expected log-density is exact (as exact as the entropy).

Local reparameterisation is exact for linear layers, W x ~ N(M x, ‖Cᵀx‖² U); for convolutions it keeps the
law of each position (over all channels), not the correlation between positions. The scaled family
has none: the variance of W x is no longer a product of something of the input and something of the
output. Flipout is refused: signs would change the covariance. Two diagonal sides are the 1-tied normal.

U → cU, V → V/c leaves everything as it is. This one redundant direction is harmless: no gradient
points along it, and the initial values share the scale evenly between the sides.

Reference: Sparse Bayesian variational learning with matrix normal distributions.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from kasuri.checks import is_whole
from kasuri.numerics import kronecker
from kasuri.numerics.safe import (
    bounded_logs,
    held,
    safe_sqrt,
    sum_squares,
    unbounded_logs,
)
from kasuri.posteriors.base import (
    NORMAL_ENTROPY,
    Builder,
    Located,
    Op,
    Pushable,
    bounded_move,
    noisy_output,
)
from kasuri.posteriors.k_tied import low_rank_output
from kasuri.posteriors.masked import Marginal, less_each
from kasuri.posteriors.mean_field import MatrixFamily
from kasuri.posteriors.parts import along, entries
from kasuri.posteriors.sides import LOG_CEILING, Side, Structure, build_side
from kasuri.streams import normal, normal_like

AUTO_RANK = 32


@dataclass(frozen=True, kw_only=True)
class KroneckerFamily(MatrixFamily):
    """Options of a family whose weights vary with a row and a column covariance."""

    full_up_to: ClassVar[int] = (
        512  # "auto" sides: entropies take an eigenvalue problem of that size
    )
    beyond: ClassVar[Structure] = "diagonal"
    rows: Structure = "auto"
    columns: Structure = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in ("rows", "columns"):
            value = getattr(self, side)
            if not is_whole(value, 1) and value not in ("auto", "full", "diagonal"):
                raise ValueError(
                    f'{type(self).__name__}({side}={value!r}): write "full" for any covariance, "diagonal" '
                    'for none, 8 for 8 common directions beside a diagonal, or "auto"'
                )

    def sides(self, weight: Tensor, scale: float, bound: float | None) -> tuple[Side, Side]:
        """Sides for a weight like this; mean initial standard deviation and bound of R X Cᵀ."""
        self.require_matrix(weight)
        *blocks, outs, ins = weight.shape
        ceiling = None if bound is None else bound**0.5

        def side(structure: Structure, size: int) -> Side:
            deviations = (self.noise * weight.new_empty(*blocks, size).normal_()).exp()
            deviations *= scale**0.5 / deviations.mean(-1, keepdim=True)
            if structure == "auto":
                structure = "full" if size <= self.full_up_to else self.beyond
            return build_side(structure, deviations, self.noise, ceiling)

        return side(self.rows, outs), side(self.columns, ins)


class KroneckerPosterior(Located, Marginal):
    """Means `loc` (*blocks, out, in) and two sides; what else there is, the families say."""

    def __init__(self, loc: Tensor, rows: Side, columns: Side) -> None:
        super().__init__()
        self.loc = nn.Parameter(loc)
        self.rows, self.columns = rows, columns

    @abstractmethod
    def half_log_det(self, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
        """Half the log-determinant of the covariance, or a lower bound.

        Args:
            rows: (*blocks, out) of bool, the rows to which the weight is cut; None for all.
            columns: (*blocks, in) of columns, given if and only if `rows` is.
        """

    def entropy(self) -> Tensor:
        return self.half_log_det() + self.numel() * NORMAL_ENTROPY

    def marginal_entropy(self, mask: Tensor) -> Tensor:
        """As exact as the entropy of all where whole rows and columns are dropped, else less by each."""
        rows, columns = mask.any(-1), mask.any(-2)
        inside = rows.unsqueeze(-1) & columns.unsqueeze(-2)
        part = self.half_log_det(rows, columns) + inside.sum().to(self.loc) * NORMAL_ENTROPY
        return less_each(part, self.variance, inside & ~mask)

    def kronecker_variance(self) -> Tensor:
        """Variances U_ii V_jj of R X Cᵀ."""
        return self.rows.variances().unsqueeze(-1) * self.columns.variances().unsqueeze(-2)

    def kronecker_draw(self) -> Tensor:
        """R X Cᵀ with fresh noise X."""
        like = self.loc
        shape = (*like.shape[:-2], self.rows.width, self.columns.width)
        noise = normal(shape, dtype=like.dtype, device=like.device)
        with torch.autocast(like.device.type, enabled=False):
            return self.rows.spread(self.columns.spread(noise).mT).mT

    def natural_step(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The steps of both sides, each of as many vectors as the other has entries.

        Other noise beside R X Cᵀ makes the information about a side smaller. It is left out, so that
        steps are never too long.
        """
        moves: dict[str, Tensor] = {}
        outs, ins = self.shape[-2:]
        for name, side, copies in (("rows", self.rows, ins), ("columns", self.columns, outs)):
            own = {
                k: gradients[f"{name}.{k}"] for k in side._parameters if f"{name}.{k}" in gradients
            }
            moves |= {f"{name}.{k}": v for k, v in side.natural_step(own, copies).items()}
        return moves

    def kronecker_pull(self, directions: Tensor) -> Tensor:
        """Rᵀ j C of directions j (N, *blocks, out, in)."""
        return (self.rows.factor().mT @ (directions @ self.columns.factor())).flatten(1)

    def pull(self, directions: Tensor) -> Tensor:
        """Rᵀ j C, and the noise of single weights that the family has beside."""
        own = (self.variance - self.kronecker_variance()).clamp(min=0).sqrt()
        return torch.cat([self.kronecker_pull(directions), (directions * own).flatten(1)], -1)

    def kronecker_output(self, op: Op, x: Tensor, y: Tensor) -> Tensor:
        """Y + ‖x C‖ · R ε: the layer's output y at x, plus the output of R X Cᵀ.

        For a convolution at every position: the law of each position, over all its channels.
        """
        if op.is_linear:
            flat = x.reshape(-1, x.shape[-1])
            noise = op.noise(y, self.rows.width).to(self.rows.log_scale.dtype)
            lengths = safe_sqrt(self.columns.pull(flat).square().sum(-1, keepdim=True))
            moved = lengths * self.rows.spread(noise.reshape(len(flat), self.rows.width))
            return y + moved.reshape(y.shape).to(y.dtype)
        squares = noise = y.new_zeros(())
        variances, directions = self.columns.parts()
        if variances is not None:
            squares = op(x.square(), variances.unsqueeze(-2))  # (batch, blocks, ...)
        if directions is not None:
            ones = torch.ones_like(directions[..., :1, :]).mT
            squares = squares + op.mix(op(x, directions.mT).square(), ones)
        variances, directions = self.rows.parts()
        if variances is not None:
            noise = op.along_features(safe_sqrt(variances), y) * normal_like(y)
        if directions is not None:
            noise = noise + op.mix(op.noise(y, directions.shape[-1]), directions.mT)
        ones = torch.ones_like(self.rows.log_scale).unsqueeze(-2)
        return y + (op.mix(safe_sqrt(squares), ones) * noise).to(y.dtype)

    def push_is_cheaper(self, vectors: int) -> bool:
        """B (in² + out²) against out · in² + in · out², for full sides: B < about in + out."""
        outs, ins = self.shape[-2:]
        drawing = outs * self.columns.cost + ins * self.rows.cost
        return vectors * (self.columns.cost + self.rows.cost) < drawing

    def cut(self, rows: Tensor, columns: Tensor | None) -> tuple[Tensor, Side, Side]:
        """Means and sides of some rows and columns, for `part`."""
        assert columns is not None
        loc = entries(self.loc, rows, columns)
        return loc, self.rows.part(rows), self.columns.part(columns)

    def family_of_part(self, family: Builder) -> Builder:
        if not isinstance(family, KroneckerFamily):
            return family
        return replace(family, rows=self.rows.structure, columns=self.columns.structure)

    def set_apart(self, mask: Tensor) -> None:
        self.rows, self.columns = self.rows.apart(mask.any(-1)), self.columns.apart(mask.any(-2))


@dataclass(frozen=True, kw_only=True)
class MatrixNormal(KroneckerFamily):
    """Weights with a covariance between rows (outputs) and one between columns (inputs).

    Either side is "full", "diagonal", or a whole number r: r common directions beside a
    diagonal. "auto", the default, is full up to 1,024, whose triangle holds as many numbers as a
    weight of 1024 x 512, and 32 common directions beyond. `max_scale` bounds the marginal
    standard deviations √(U_ii V_jj) softly. Correlations start at 0. Vectors (biases) get a
    mean-field posterior.

    Args:
        rows: structure of the covariance between outputs.
        columns: structure of the covariance between inputs.
        noise: spread of the initial log-standard deviations of either side, and size of initial
            common directions (which, from 0, would only move by chance).

    Examples:
        >>> q = MatrixNormal()(torch.zeros(30, 20))
        >>> sum(p.numel() for p in q.parameters()) == 30 * 20 + 30 * 31 // 2 + 20 * 21 // 2
        True
        >>> q.variance.sqrt().mean()
        tensor(0.0100, grad_fn=<MeanBackward0>)
    """

    full_up_to: ClassVar[int] = 1024
    beyond: ClassVar[Structure] = AUTO_RANK

    def __call__(self, weight: Tensor) -> "MatrixNormalPosterior":
        rows, columns = self.sides(weight, self.scale, self.max_scale)
        return MatrixNormalPosterior(self.initial_mean(weight), rows, columns)


class MatrixNormalPosterior(KroneckerPosterior, Pushable):
    """loc + R X Cᵀ; `rows` holds R, `columns` holds C."""

    @property
    def variance(self) -> Tensor:
        return self.kronecker_variance()

    def rsample(self) -> Tensor:
        return self.loc + self.kronecker_draw()

    def pull(self, directions: Tensor) -> Tensor:
        return self.kronecker_pull(directions)

    def half_log_det(self, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
        """In · log|R| + out · log|C|, of what is left of them."""
        if rows is None or columns is None:
            outs, ins = self.shape[-2:]
            return ins * self.rows.log_det() + outs * self.columns.log_det()
        parts = self.rows.marginal_log_det(rows), self.columns.marginal_log_det(columns)
        logs = columns.sum(-1) * parts[0] + rows.sum(-1) * parts[1]
        return logs.sum().to(self.loc.dtype)

    def squared_norm(self) -> Tensor:
        return self.entropy_and_square()[1]

    def entropy_and_square(self) -> tuple[Tensor, Tensor]:
        """Both from one pass over each side, in O(out² + in²)."""
        outs, ins = self.shape[-2:]
        (log_rows, rows), (log_columns, columns) = self.rows.sums(), self.columns.sums()
        entropy = ins * log_rows + outs * log_columns + self.numel() * NORMAL_ENTROPY
        return entropy, sum_squares(self.loc) + (rows * columns).sum()

    def push(self, op: Op, x: Tensor) -> Tensor:
        """op(x, M) + ‖x C‖ · R ε, and the noise of the bias."""
        return self.kronecker_output(op, x, noisy_output(op, x, self.loc, None))

    def part(self, rows: Tensor, columns: Tensor | None = None) -> "MatrixNormalPosterior":
        return MatrixNormalPosterior(*self.cut(rows, columns))


@dataclass(frozen=True, kw_only=True)
class MatrixNormalDiagonal(KroneckerFamily):
    """Weights with row and column covariances and independent noise of their own on top.

    A superset of both the matrix normal (of the same sides) and the independent normal, up to the form of D.
    Half of the initial variance is independent noise. `max_scale` bounds the marginal standard
    deviations √(U_ii V_jj + D_ij) softly, half the squared bound for either part. "auto" sides are
    full up to 512 and diagonal beyond: the entropy takes an eigenvalue problem of that size at
    every step. Vectors (biases) get a mean-field posterior.

    Args:
        diagonal: "rank1", D_ij = a_i b_j, with an exact entropy; or "free", any D, with a lower bound.
        rows: as in MatrixNormal.
        columns: as in MatrixNormal.

    Examples:
        >>> q = MatrixNormalDiagonal(scale=0.05)(torch.zeros(30, 20))
        >>> q.variance.sqrt().mean()
        tensor(0.0500, grad_fn=<MeanBackward0>)
    """

    diagonal: str = "rank1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.diagonal not in ("rank1", "free"):
            raise ValueError(
                f'MatrixNormalDiagonal(diagonal={self.diagonal!r}): write "rank1" for an exact entropy, or '
                '"free" for free variances and a bound'
            )

    def __call__(self, weight: Tensor) -> "MatrixNormalDiagonalPosterior":
        bound = None if self.max_scale is None else self.max_scale / math.sqrt(2)
        rows, columns = self.sides(weight, self.scale / math.sqrt(2), bound)
        logs = [side.variances().detach().log() / 2 for side in (rows, columns)]
        loc = self.initial_mean(weight)
        if self.diagonal == "rank1":
            ceiling = None if bound is None else math.sqrt(bound)
            tied = [unbounded_logs(side, ceiling) for side in logs]
            return RankOneDiagonalPosterior(loc, rows, columns, tied[0], tied[1], ceiling)
        free = unbounded_logs(logs[0].unsqueeze(-1) + logs[1].unsqueeze(-2), bound)
        return FreeDiagonalPosterior(loc, rows, columns, free, bound)


class MatrixNormalDiagonalPosterior(KroneckerPosterior, Pushable):
    """loc + R X Cᵀ + √D ∘ E."""

    @property
    @abstractmethod
    def extra_scale(self) -> Tensor:
        """√D, shaped like W."""

    @property
    def variance(self) -> Tensor:
        return self.kronecker_variance() + self.extra_scale.square()

    def rsample(self) -> Tensor:
        shared = self.loc + self.kronecker_draw()
        return torch.addcmul(shared, self.extra_scale, normal_like(self.loc))

    def squared_norm(self) -> Tensor:
        """‖M‖² + ‖R‖² ‖C‖² + Σ D."""
        noise = self.rows.sums()[1] * self.columns.sums()[1]
        return sum_squares(self.loc) + noise.sum() + sum_squares(self.extra_scale)


class RankOneDiagonalPosterior(MatrixNormalDiagonalPosterior):
    """√D = exp(log_rows + log_columns): its entropy is exact."""

    def __init__(
        self,
        loc: Tensor,
        rows: Side,
        columns: Side,
        log_rows: Tensor,
        log_columns: Tensor,
        ceiling: float | None = None,
    ) -> None:
        super().__init__(loc, rows, columns)
        self.log_rows, self.log_columns = nn.Parameter(log_rows), nn.Parameter(log_columns)
        self.ceiling = ceiling

    def _factors(self, dtype: torch.dtype) -> list[Tensor]:
        """Logarithms of both factors of √D, bounded."""
        logs = self.log_rows.to(dtype), self.log_columns.to(dtype)
        return [bounded_logs(side, LOG_CEILING, self.ceiling) for side in logs]

    @property
    def extra_scale(self) -> Tensor:
        rows, columns = (logs.exp() for logs in self._factors(self.loc.dtype))
        return rows.unsqueeze(-1) * columns.unsqueeze(-2)

    def half_log_det(self, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
        """½ Σ log(1 + λ_i μ_j) + ½ Σ log D, λ and μ the eigenvalues of U/a and V/b, D = abᵀ."""
        a, b = self._factors(torch.float64)
        rows = torch.ones_like(a) if rows is None else rows.to(a)
        columns = torch.ones_like(b) if columns is None else columns.to(b)
        spectra = self.rows.spectrum(rows * (-a).exp()), self.columns.spectrum(columns * (-b).exp())
        shared = kronecker.log_det_plus_identity(spectra[0][0], spectra[1][0]).sum() / 2
        logs = columns.sum(-1) * (a * rows).sum(-1) + rows.sum(-1) * (b * columns).sum(-1)
        return (shared + logs.sum()).to(self.loc.dtype)

    def push(self, op: Op, x: Tensor) -> Tensor:
        """op(x, M) + ‖x C‖ · R ε + √op(x², D) ∘ ε, and the noise of the bias."""
        rows, columns = (logs.unsqueeze(-2) for logs in self._factors(self.loc.dtype))
        return self.kronecker_output(op, x, low_rank_output(op, x, self.loc, rows, columns))

    def natural_step(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Also of the factors of √D, as if there were no R X Cᵀ; see the sides."""
        moves = super().natural_step(gradients)
        outs, ins = self.shape[-2:]
        for name, logs, copies in zip(
            ("log_rows", "log_columns"), self._factors(self.loc.dtype), (ins, outs), strict=True
        ):
            slope = 1 if self.ceiling is None else 1 - logs.exp() / self.ceiling
            moves[name] = bounded_move(gradients[name] / (-2 * copies * slope**2))
        return moves

    def part(self, rows: Tensor, columns: Tensor | None = None) -> "RankOneDiagonalPosterior":
        assert columns is not None
        logs = along(self.log_rows, rows), along(self.log_columns, columns)
        return RankOneDiagonalPosterior(*self.cut(rows, columns), *logs, self.ceiling)


class FreeDiagonalPosterior(MatrixNormalDiagonalPosterior):
    """√D = exp(log_extra), any positive matrix: its entropy is a lower bound, so that an ELBO stays one.

    The bound is the better of two (formulas and proof in `numerics.kronecker`), exact where D happens to be
    of rank one; its gradient takes eigenvectors as constants.
    """

    def __init__(
        self,
        loc: Tensor,
        rows: Side,
        columns: Side,
        log_extra: Tensor,
        ceiling: float | None = None,
    ) -> None:
        super().__init__(loc, rows, columns)
        self.log_extra = nn.Parameter(log_extra)
        self.ceiling = ceiling

    @property
    def extra_scale(self) -> Tensor:
        return bounded_logs(self.log_extra, 2 * LOG_CEILING, self.ceiling).exp()

    def half_log_det(self, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
        """A lower bound; of a part beside noise of its own kind, which is taken off again."""
        logs = 2 * bounded_logs(self.log_extra.double(), 2 * LOG_CEILING, self.ceiling)
        inside = torch.ones_like(logs)
        if rows is not None and columns is not None:
            rows, columns = rows.to(logs), columns.to(logs)
            inside = rows.unsqueeze(-1) * columns.unsqueeze(-2)
            logs = torch.where(inside > 0, logs, kronecker.completed(logs, rows, columns))
        a, b = kronecker.balance(logs)  # abᵀ is closest to D
        rest = logs - a.unsqueeze(-1) - b.unsqueeze(-2)
        left, right = (-a / 2).exp(), (-b / 2).exp()
        in_rows = self.rows.spectrum(left if rows is None else left * rows)
        in_columns = self.columns.spectrum(right if columns is None else right * columns)
        bound = kronecker.log_det_bound(in_rows, in_columns, rest).sum()
        return ((bound + (logs * inside).sum()) / 2).to(self.loc.dtype)

    def push(self, op: Op, x: Tensor) -> Tensor:
        """op(x, M) + ‖x C‖ · R ε + √op(x², D) ∘ ε, and the noise of the bias."""
        noisy = noisy_output(op, x, self.loc, op(x.square(), self.extra_scale.square()))
        return self.kronecker_output(op, x, noisy)

    def natural_step(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Also of √D, as if there were no R X Cᵀ; see the sides."""
        slope = 1 if self.ceiling is None else 1 - self.extra_scale / self.ceiling
        move = bounded_move(gradients["log_extra"] / (-2 * slope**2))
        return super().natural_step(gradients) | {"log_extra": move}

    def part(self, rows: Tensor, columns: Tensor | None = None) -> "FreeDiagonalPosterior":
        extra = entries(self.log_extra, rows, columns)
        return FreeDiagonalPosterior(*self.cut(rows, columns), extra, self.ceiling)


@dataclass(frozen=True, kw_only=True)
class ScaledMatrixNormal(KroneckerFamily):
    """Free standard deviations around Kronecker correlations.

    It contains the independent normal (no R X Cᵀ), the matrix normal (S of rank one, in the limit of
    little E) and the matrix normal plus a rank-one diagonal, and everything about it is exact.
    Half of the initial variance is independent noise. "auto" sides are full up to 512 and
    diagonal beyond, since the entropy takes an eigenvalue problem of that size at every step.
    `max_scale` bounds the marginal standard deviations softly. Vectors (biases) get a mean-field
    posterior. Use it with estimator="shared".

    Args:
        rows: as in MatrixNormal.
        columns: as in MatrixNormal.

    Examples:
        >>> q = ScaledMatrixNormal(scale=0.05)(torch.zeros(30, 20))
        >>> q.variance.sqrt().mean()
        tensor(0.0500, grad_fn=<MeanBackward0>)
    """

    def __call__(self, weight: Tensor) -> "ScaledMatrixNormalPosterior":
        rows, columns = self.sides(weight, 1.0, None)
        around = rows.variances().unsqueeze(-1) * columns.variances().unsqueeze(-2)
        scale = torch.randn_like(weight, requires_grad=False).mul(self.noise).exp()
        scale *= self.scale / scale.mean((-2, -1), keepdim=True)
        logs = unbounded_logs(scale.log(), self.max_scale) - (1 + around.detach()).log() / 2
        loc = self.initial_mean(weight)
        return ScaledMatrixNormalPosterior(loc, rows, columns, logs, self.max_scale)


class ScaledMatrixNormalPosterior(KroneckerPosterior):
    """loc + S ∘ (R X Cᵀ + E), S = exp(log_scale)."""

    def __init__(
        self,
        loc: Tensor,
        rows: Side,
        columns: Side,
        log_scale: Tensor,
        max_scale: float | None = None,
    ) -> None:
        super().__init__(loc, rows, columns)
        self.log_scale = nn.Parameter(log_scale)
        self.max_scale = max_scale

    def _log_scale(self) -> Tensor:
        """Log S, bounded by what the marginal variances inside the brackets leave of the bound."""
        logs = held(self.log_scale, LOG_CEILING)
        if self.max_scale is None:
            return logs
        around = 1 + self.kronecker_variance()
        return logs - torch.log1p(logs.exp() * safe_sqrt(around) / self.max_scale)

    @property
    def outer_scale(self) -> Tensor:
        return self._log_scale().exp()

    @property
    def variance(self) -> Tensor:
        """Marginal variances S² (U_ii V_jj + 1)."""
        return (2 * self._log_scale()).exp() * (1 + self.kronecker_variance())

    def squared_norm(self) -> Tensor:
        """‖M‖² + Σ S² + Σ_ij U_ii S_ij² V_jj."""
        squares = (2 * self._log_scale()).exp()
        shared = (self.rows.variances().unsqueeze(-2) @ squares).squeeze(-2)
        return sum_squares(self.loc) + squares.sum() + (shared * self.columns.variances()).sum()

    def rsample(self) -> Tensor:
        inside = self.kronecker_draw() + normal_like(self.loc)
        return torch.addcmul(self.loc, self.outer_scale, inside)

    def pull(self, directions: Tensor) -> Tensor:
        """Rᵀ (S ∘ j) C and S ∘ j."""
        scaled = directions * self.outer_scale
        return torch.cat([self.kronecker_pull(scaled), scaled.flatten(1)], -1)

    def half_log_det(self, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
        """Σ log S + ½ Σ log(1 + λ_i μ_j), λ and μ the eigenvalues of R Rᵀ and C Cᵀ."""
        logs, left, right = self._log_scale(), None, None
        if rows is not None and columns is not None:
            logs = logs * (rows.unsqueeze(-1) & columns.unsqueeze(-2))
            left, right = rows.double(), columns.double()
        spectra = self.rows.spectrum(left)[0], self.columns.spectrum(right)[0]
        shared = kronecker.log_det_plus_identity(*spectra).sum() / 2
        return logs.sum() + shared.to(self.loc.dtype)

    def natural_step(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Also of log S, by 2 + U_ii V_jj, which bounds the diagonal of its information.

        With a bound on standard deviations S depends on the sides; then only they have natural steps.
        """
        moves = super().natural_step(gradients)
        if self.max_scale is None:
            information = 2 + self.kronecker_variance()
            moves["log_scale"] = bounded_move(-gradients["log_scale"] / information)
        return moves

    def part(self, rows: Tensor, columns: Tensor | None = None) -> "ScaledMatrixNormalPosterior":
        logs = entries(self.log_scale, rows, columns)
        return ScaledMatrixNormalPosterior(*self.cut(rows, columns), logs, self.max_scale)
