"""k-tied normal: W_ij ~ N(μ_ij, σ_ij²) with σ = RᵀC of rank k and positive factors R, C.

Parameters: 1 per weight plus k(out + in). Exact: sampling, entropy (closed form for k = 1, one
sweep over σ for k ≥ 2), Σσ² in O(k²(out + in)), KL, local reparameterisation of linear layers at
the cost of k(k+1)/2 extra output features, flipout. Approximate: as for mean-field, local
reparameterisation of convolutions keeps marginals only.

Reference: the k-tied Normal distribution (Swiatkowski et al., ICML 2020).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kasuri.checks import is_whole
from kasuri.numerics import low_rank
from kasuri.numerics.safe import bounded_logs, unbounded_logs
from kasuri.numerics.sampling import normal_noise
from kasuri.numerics.torch_internals import eager
from kasuri.posteriors.base import Elementwise, Op, bias_moments, bounded_move, noisy_output
from kasuri.posteriors.mean_field import MatrixFamily
from kasuri.posteriors.parts import along, entries

LOOKED_AT = 64  # positions of the other factor that tell the information about one


@dataclass(frozen=True)
class KTied(MatrixFamily):
    """Independent normal weights whose standard deviations are a rank-k product.

    The logarithms of both factors start at ½ log(scale/k) plus normal noise of standard
    deviation `noise`, shifted so that the mean of σ is exactly `scale`; σ then has coefficient of
    variation √((e^{2·noise²} - 1)/k). `max_scale` bounds each factor softly by √(max_scale/k), which
    bounds σ and keeps its rank. Vectors (biases) get a mean-field posterior: there is nothing
    to tie.

    Args:
        rank: k, the number of products; 1, 2 and 3 are the useful values.
        noise: standard deviation of the initial noise in log-factors.

    Examples:
        >>> import torch
        >>> q = KTied(2)(torch.zeros(30, 20))
        >>> sum(p.numel() for p in q.parameters())
        700
    """

    rank: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_whole(self.rank, 1):
            raise ValueError(f"KTied(rank={self.rank!r}): must be a whole number, 1 or more")

    def __call__(self, weight: Tensor) -> "KTiedPosterior":
        self.require_matrix(weight)
        *blocks, outs, ins = weight.shape
        bound = None if self.max_scale is None else math.sqrt(self.max_scale / self.rank)
        centre = 0.5 * (math.log(self.scale) - math.log(self.rank)) - self.noise**2 / 2

        def logs(length: int) -> Tensor:
            logs = centre + self.noise * weight.new_empty(*blocks, self.rank, length).normal_()
            return unbounded_logs(logs, bound)

        return KTiedPosterior(self.initial_mean(weight), logs(outs), logs(ins), self.max_scale)


class KTiedPosterior(Elementwise):
    """N(loc, (RᵀC)²) with R = exp(log_rows) (*blocks, k, out), C = exp(log_columns) (*blocks, k, in)."""

    def __init__(
        self,
        loc: Tensor,
        log_rows: Tensor,
        log_columns: Tensor,
        max_scale: float | None = None,
    ) -> None:
        super().__init__()
        self.loc = nn.Parameter(loc)
        self.log_rows = nn.Parameter(log_rows)
        self.log_columns = nn.Parameter(log_columns)
        self.max_scale = max_scale

    @property
    def rank(self) -> int:
        return self.log_rows.shape[-2]

    def log_factors(self) -> tuple[Tensor, Tensor]:
        """Logarithms of R and C, softly bounded by √(max_scale/k) each if there is a bound."""
        if self.max_scale is None:
            return self.log_rows, self.log_columns
        ceiling = math.sqrt(self.max_scale / self.rank)
        rows, columns = low_rank.bounded(self.log_rows), low_rank.bounded(self.log_columns)
        return bounded_logs(rows, ceiling=ceiling), bounded_logs(columns, ceiling=ceiling)

    @property
    def scale(self) -> Tensor:
        return low_rank.product(*self.log_factors())

    def sums(self) -> tuple[Tensor, Tensor]:
        """(Σ log σ, Σ loc² + Σ σ²), the first without underflow, the second without forming σ."""
        return low_rank.normal_sums(self.loc, *self.log_factors())

    def push(self, op: Op, x: Tensor) -> Tensor:
        """As in every elementwise family, at the cost of K = k(k+1)/2 extra output features."""
        return low_rank_output(op, x, self.loc, *self.log_factors())

    def natural_step(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """-g/n for log-factors, n the row sums of their block of the Fisher information, which bound it.

        n = 2 R ∘ (C Sᵀ) for the rows and 2 C ∘ (R S) for the columns, S = 1/σ elementwise: twice the number
        of weights that a factor is in, times its share of their σ. The shares are averages over some of
        those weights; for k = 1 they are 1.
        """
        rows, columns = (low_rank.factor(side) for side in self.log_factors())
        some_rows, some_columns = _some(rows), _some(columns)
        moves = {}
        for name, own, shares, copies in (
            ("log_rows", rows, _shares(rows, some_columns), columns.shape[-1]),
            ("log_columns", columns, _shares(columns, some_rows), rows.shape[-1]),
        ):
            information = 2 * copies * shares
            if self.max_scale is not None:  # the bounded logarithms move by less
                ceiling = math.sqrt(self.max_scale / self.rank)
                information = information * (1 - own / ceiling).square()
            moves[name] = bounded_move(-gradients[name] / information)
        return moves

    def part(self, rows: Tensor, columns: Tensor | None = None) -> "KTiedPosterior":
        assert columns is not None
        log_rows = along(self.log_rows, rows.unsqueeze(-2))
        log_columns = along(self.log_columns, columns.unsqueeze(-2))
        loc = entries(self.loc, rows, columns)
        return KTiedPosterior(loc, log_rows, log_columns, self.max_scale)


def _some(factor: Tensor) -> Tensor:
    """About `LOOKED_AT` positions of a factor, evenly spread."""
    return factor[..., :: -(-factor.shape[-1] // LOOKED_AT)]


def _shares(own: Tensor, other: Tensor) -> Tensor:
    """How much each of the k values at a position of one factor is of σ, on average over the other's."""
    return own * (other @ (own.mT @ other).reciprocal().mT) / other.shape[-1]


def low_rank_output(
    op: Op, x: Tensor, mean: Tensor, log_rows: Tensor, log_columns: Tensor
) -> Tensor:
    """A draw of the layer's output, bias included, for N(mean, (RᵀC)²): never σ² times the batch."""
    plain = eager() and op.is_linear and x.dim() == 2 and x.dtype == mean.dtype
    if plain and not torch.is_autocast_enabled(x.device.type):
        centre, spread = bias_moments(op)
        noise = normal_noise(x.new_empty(len(x), len(mean)), examples=True)
        zeros = noise.new_zeros(())
        return low_rank.noisy_linear(
            x,
            mean,
            (log_rows, log_columns),
            zeros if centre is None else centre,
            zeros if spread is None else spread,
            noise,
        )
    factors = low_rank.factor(log_rows), low_rank.factor(log_columns)
    rows, columns = low_rank.square_factors(*factors)
    return noisy_output(op, x, mean, op.mix(op(x.square(), columns), rows))
