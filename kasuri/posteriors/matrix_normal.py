"""Matrix normal: W = M + R X Cᵀ, X independent noise; rows covary as U = R Rᵀ, columns as V = C Cᵀ.

The covariance of all weights is the Kronecker product of U and V and is never formed.

Parameters: 1 per weight, and for each side of length n: n(n+1)/2 if full, n(1 + r) for r common
directions beside a diagonal, n if diagonal. Exact: sampling, entropy, log-density, marginal
variances U_ii V_jj, KL to any prior whose expected log-density is exact, local reparameterisation
of linear layers, W x ~ N(M x, ‖Cᵀx‖² U). Approximate: local reparameterisation of convolutions keeps
the law of each position (over all channels), not the correlation between positions. Flipout
is refused: signs would change the covariance. Two diagonal sides are the 1-tied normal.

U → cU, V → V/c leaves everything as it is. This one redundant direction is harmless: no gradient
points along it, and the initial values share the scale evenly between the sides.

Reference: Sparse Bayesian variational learning with matrix normal distributions.
"""

from dataclasses import dataclass

from torch import Tensor

from kasuri.numerics.safe import sum_squares
from kasuri.posteriors.base import LOG_TWO_PI, Dense, Op, Pushable, noisy_bias_output
from kasuri.posteriors.kronecker import KroneckerFamily, KroneckerPosterior, Structure

FULL_UP_TO = 1024
AUTO_RANK = 32


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
        scale: mean initial marginal standard deviation of the weights.
        noise: spread of the initial log-standard deviations of either side, and size of initial
            common directions (which, from 0, would only move by chance).
        max_scale: as in every family.
        mean: as in every family.

    Examples:
        >>> import torch
        >>> q = MatrixNormal()(torch.zeros(30, 20))
        >>> sum(p.numel() for p in q.parameters()) == 30 * 20 + 30 * 31 // 2 + 20 * 21 // 2
        True
        >>> q.variance.sqrt().mean()
        tensor(0.0100, grad_fn=<MeanBackward0>)
    """

    def __call__(self, weight: Tensor) -> "MatrixNormalPosterior":
        """The posterior around an initial weight (*blocks, out, in)."""
        rows, columns = self.sides(weight, self.scale, self.max_scale)
        return MatrixNormalPosterior(self.initial_mean(weight), rows, columns)

    @staticmethod
    def auto(size: int) -> Structure:
        """Full up to 1,024, then 32 common directions."""
        return "full" if size <= FULL_UP_TO else AUTO_RANK


class MatrixNormalPosterior(KroneckerPosterior, Pushable, Dense):
    """loc + R X Cᵀ; `rows` holds R, `columns` holds C."""

    @property
    def variance(self) -> Tensor:
        """Marginal variances U_ii V_jj."""
        return self.kronecker_variance()

    def rsample(self) -> Tensor:
        """M + R X Cᵀ."""
        return self.loc + self.kronecker_draw()

    def pull(self, directions: Tensor) -> Tensor:
        """Rᵀ j C."""
        return self.kronecker_pull(directions)

    def entropy_and_square(self) -> tuple[Tensor, Tensor]:
        """N/2 · log(2πe) + in · log|R| + out · log|C|, and ‖M‖² + ‖R‖² ‖C‖², in O(out² + in²)."""
        outs, ins = self.shape[-2:]
        (log_rows, rows), (log_columns, columns) = self.rows.sums(), self.columns.sums()
        entropy = ins * log_rows + outs * log_columns + self.numel() * 0.5 * (1 + LOG_TWO_PI)
        return entropy, sum_squares(self.loc) + (rows * columns).sum()

    def half_log_det(self, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
        """In · log|R| + out · log|C|, of what is left of them."""
        if rows is None or columns is None:
            outs, ins = self.shape[-2:]
            return ins * self.rows.log_det() + outs * self.columns.log_det()
        parts = self.rows.marginal_log_det(rows), self.columns.marginal_log_det(columns)
        logs = columns.sum(-1) * parts[0] + rows.sum(-1) * parts[1]
        return logs.sum().to(self.loc.dtype)

    def entropy(self) -> Tensor:
        """N/2 · log(2πe) + in · log|R| + out · log|C|."""
        return self.entropy_and_square()[0]

    def squared_norm(self) -> Tensor:
        """‖M‖² + ‖R‖² ‖C‖²."""
        return self.entropy_and_square()[1]

    def log_prob(self, weight: Tensor) -> Tensor:
        """Log-density of W (*blocks, out, in), summed over blocks.

        Examples:
            >>> import torch
            >>> q = MatrixNormal(scale=1.0, noise=0.0)(torch.zeros(2, 1))
            >>> q.log_prob(torch.zeros(2, 1))
            tensor(-1.8379, grad_fn=<SubBackward0>)
        """
        away = weight - self.loc
        white = self.rows.solve(self.columns.solve(away).mT).mT
        constant = 0.5 * self.numel() * LOG_TWO_PI
        return -0.5 * (away * white).sum() - self.half_log_det() - constant

    def push(self, op: Op, x: Tensor) -> Tensor:
        """op(x, M) + ‖x C‖ · R ε, and the noise of the bias."""
        y = noisy_bias_output(op, x, self.loc)
        return y + op.draw_kronecker(x, y, self.rows, self.columns)

    def push_is_cheaper(self, vectors: int) -> bool:
        """B (in² + out²) against out · in² + in · out², for full sides."""
        return self.kronecker_push_is_cheaper(vectors)

    def part(self, rows: Tensor, columns: Tensor | None = None) -> "MatrixNormalPosterior":
        """Parts of both sides."""
        return MatrixNormalPosterior(*self.cut(rows, columns))
