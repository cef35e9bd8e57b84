"""Equal mixtures of normals with a common scale: quantiles by bisection, entropy by quadrature."""

import math

import torch
from torch import Tensor

_NODES = 12
_SQRT_TWO = math.sqrt(2)


def mixture_quantile(means: Tensor, scale: Tensor, probability: float) -> Tensor:
    """The y with (1/S) Σ_s Φ((y - means_s)/scale) = probability, to about 1e-6 of the range.

    Args:
        means: (S, ...) centres of the components.
        scale: (...) their common standard deviation.
        probability: strictly between 0 and 1.

    Examples:
        >>> mixture_quantile(torch.zeros(3, 1), torch.ones(1), 0.975)
        tensor([1.9600])
    """
    reach = scale * (_SQRT_TWO * torch.erfinv(torch.tensor(2 * probability - 1.0)).abs() + 1)
    low, high = means.amin(0) - reach, means.amax(0) + reach
    for _ in range(50 if means.dtype == torch.float64 else 30):
        middle = (low + high) / 2
        below = torch.special.ndtr((middle - means) / scale).mean(0) < probability
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def mixture_entropy(means: Tensor, scale: Tensor) -> Tensor:
    """Differential entropy of each mixture by Gauss-Hermite quadrature around every component.

    H = -(1/S) Σ_s E_{y ~ N(means_s, scale²)} log (1/S) Σ_t N(y; means_t, scale²), S² terms an
    output. Exact for coinciding components; 12 nodes were within 2e-4 nats otherwise.

    Args:
        means: (S, ...) centres of the components.
        scale: (...) their common standard deviation.

    Examples:
        >>> H = mixture_entropy(torch.zeros(4, 1), torch.ones(1))
        >>> torch.allclose(H, torch.tensor([0.5 * (1 + math.log(2 * math.pi))]))
        True
    """
    nodes, weights = _hermite(means.dtype, means.device)
    count = means.shape[0]
    total = torch.zeros_like(scale)
    for centre in means:  # one component at a time bounds the memory to 12·S values an output
        y = centre + scale * nodes.reshape(-1, *[1] * centre.dim())
        z = (y.unsqueeze(1) - means) / scale  # (nodes, S, ...)
        log_density = torch.logsumexp(-0.5 * z.square(), 1)
        total += (weights.reshape(-1, *[1] * centre.dim()) * log_density).sum(0)
    constant = math.log(count) + 0.5 * math.log(2 * math.pi)
    return scale.log() + constant - total / count


def _hermite(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights for expectations under N(0, 1) (Golub-Welsch)."""
    off = torch.arange(1, _NODES, dtype=torch.float64).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return nodes.to(device, dtype), vectors[0].square().to(device, dtype)
