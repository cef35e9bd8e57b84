"""Spectra of posterior means and standard deviations, with what they would be without structure.

The share of a singular value γ_k is γ_k²/Σγ². It is not centred: a constant matrix with
independent relative noise of coefficient of variation c has a first share of 1/(1 + c²), 0.99 for
c = 0.1. A first share near 1 alone is therefore no sign of structure, and three baselines stand
beside it: what the best constant matrix explains, the spectrum of the same entries in random order,
and the spectrum of the matrix minus its mean.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.network.random import require_posteriors
from kasuri.posteriors.base import Elementwise, Posterior
from kasuri.streams import mix

ROUNDING = 1e-12  # relative size below which a difference of equal numbers is rounding
SHOWN = 10  # components of a spectrum in a result file


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Singular values of one matrix, largest first, in double precision.

    Examples:
        >>> Spectrum(torch.tensor([2.0, 1.0])).share
        tensor([0.8000, 0.2000])
    """

    values: Tensor

    @property
    def share(self) -> Tensor:
        """γ_k²/Σγ²: what each component explains by itself (zeros for a matrix of zeros)."""
        tiny = torch.finfo(self.values.dtype).tiny
        squares = (self.values / self.values[0].clamp_min(tiny)).square()
        return squares / squares.sum().clamp_min(tiny)

    @property
    def cumulative(self) -> Tensor:
        """What the first k components explain together: the share of the best rank-k matrix."""
        return self.share.cumsum(0)

    def as_dict(self) -> dict[str, Any]:
        """Values, shares and cumulative shares of the first ten components, for JSON."""
        parts = {"values": self.values, "share": self.share, "cumulative": self.cumulative}
        return {name: part[:SHOWN].tolist() for name, part in parts.items()}


@dataclass(frozen=True, eq=False)
class LayerSpectrum:
    """Spectra of one weight matrix; the scale and its baselines are None for a point estimate.

    Args:
        layer: name of the matrix.
        shape: (out, in).
        mean: of the posterior means.
        scale: of the standard deviations σ.
        constant: share that the best constant matrix explains, mean(σ)²/mean(σ²).
        shuffled: of σ with its entries in random order, the same every time.
        centred: of σ - mean(σ); what is left of structure when the constant is taken out.
    """

    layer: str
    shape: tuple[int, int]
    mean: Spectrum
    scale: Spectrum | None = None
    constant: float | None = None
    shuffled: Spectrum | None = None
    centred: Spectrum | None = None

    def as_dict(self) -> dict[str, Any]:
        """Everything, cut after ten components, ready for JSON; of the baselines the shares."""
        row: dict[str, Any] = {"layer": self.layer, "shape": list(self.shape)}
        row |= {"mean": self.mean.as_dict(), "scale": None}
        if self.scale is not None and self.shuffled is not None and self.centred is not None:
            row["scale"] = self.scale.as_dict() | {
                "constant": self.constant,
                "shuffled": self.shuffled.share[:SHOWN].tolist(),
                "centred": self.centred.share[:SHOWN].tolist(),
            }
        return row


def spectrum(bnn: nn.Module) -> dict[str, LayerSpectrum]:
    """Spectra of every weight matrix of a converted network, by name.

    Vectors are left out; gates, groups and other blocks have an entry each ("lstm.weight_ih_l0[0]").

    Args:
        bnn: a network from `bayesianize`, of any family.

    Examples:
        >>> import kasuri
        >>> spectra = spectrum(kasuri.bayesianize(nn.Linear(30, 20), kasuri.KTied(rank=1)))
        >>> f"{spectra['weight'].scale.share[0]:.4f}", spectra["weight"].shape
        ('1.0000', (20, 30))
    """
    spectra: dict[str, LayerSpectrum] = {}
    for name, q in matrix_posteriors(bnn).items():
        scale = scale_of(name, q)
        scales = {} if scale is None else dict(blocks_of(name, scale))
        for title, mean in blocks_of(name, _finite(f"the means of {name}", q.mean)):
            spectra[title] = _layer(title, mean, scales.get(title), mix(0, len(spectra)))
    return spectra


def _layer(name: str, mean: Tensor, scale: Tensor | None, seed: int) -> LayerSpectrum:
    shape, means = (mean.shape[0], mean.shape[1]), Spectrum(torch.linalg.svdvals(mean))
    if scale is None:
        return LayerSpectrum(name, shape, means)
    order = torch.randperm(scale.numel(), generator=torch.Generator().manual_seed(seed))
    centred = scale - scale.mean()
    if centred.abs().max() <= ROUNDING * scale.abs().max():
        centred = torch.zeros_like(scale)
    relative = scale / scale.max()  # squares of very small scales would underflow
    constant = float(relative.mean().square() / relative.square().mean())
    matrices = torch.stack([scale, scale.flatten()[order].reshape(shape), centred])
    whole, shuffled, rest = (Spectrum(values) for values in torch.linalg.svdvals(matrices))
    return LayerSpectrum(name, shape, means, whole, constant, shuffled, rest)


def matrix_posteriors(bnn: nn.Module) -> dict[str, Posterior]:
    """The posteriors of matrices by name; vectors are left out."""
    posteriors = {name: q for name, q in require_posteriors(bnn).items() if len(q.shape) >= 2}
    if not posteriors:
        raise ValueError(
            f"only vectors of {type(bnn).__name__} are random, and a vector has no rank; convert weight "
            "matrices as well"
        )
    return posteriors


def blocks_of(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """(name, matrix) of every block of a weight (*blocks, out, in); numbered if there are several."""
    matrices = tensor.reshape(-1, *tensor.shape[-2:])
    for index, matrix in enumerate(matrices):
        yield (f"{name}[{index}]" if len(matrices) > 1 else name), matrix


@torch.no_grad()
def scale_of(name: str, q: Posterior) -> Tensor | None:
    """Standard deviations in double precision; None where nothing is random."""
    scale = q.scale if isinstance(q, Elementwise) else q.variance.sqrt()
    scale = _finite(f"the standard deviations of {name}", scale)
    return scale if bool((scale > 0).any()) else None


def _finite(title: str, tensor: Tensor) -> Tensor:
    values = tensor.detach().cpu().double()
    if not bool(values.isfinite().all()):
        raise ValueError(f"{title} are not all finite: training failed; take an earlier checkpoint")
    return values


def spectrum_table(spectra: Mapping[str, LayerSpectrum]) -> str:
    """Plain text: cumulative shares at ranks 1, 2, 3 in per cent, scales beside their baselines.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(30, 20), kasuri.KTied(rank=1, noise=0.5))
        >>> spectrum_table(spectrum(bnn)).splitlines()[2].split()[:2]
        ['weight', '20x30']
    """
    width = max([len("layer"), *map(len, spectra)])
    ranks = " ".join(f"{f'k={k}':>6}" for k in (1, 2, 3))
    titles = f"{'means':^20} {'scales':^20} {'constant':>9} {'shuffled':^20} {'centred':^20}"
    lines = [
        f"{'':<{width}} {'':>11} {titles}",
        f"{'layer':<{width}} {'shape':>11} {ranks} {ranks} {'k=0':>9} {ranks} {ranks}",
    ]
    for name, layer in spectra.items():
        constant = "-" if layer.constant is None else f"{100 * layer.constant:.2f}"
        lines.append(
            f"{name:<{width}} {'x'.join(map(str, layer.shape)):>11} {_cells(layer.mean)} "
            f"{_cells(layer.scale)} {constant:>9} {_cells(layer.shuffled)} {_cells(layer.centred)}"
        )
    return "\n".join(line.rstrip() for line in lines)


def _cells(of: Spectrum | None) -> str:
    shares = [] if of is None else of.cumulative[:3].tolist()
    cells = [f"{100 * share:.2f}" for share in shares] + ["-"] * (3 - len(shares))
    return " ".join(f"{cell:>6}" for cell in cells)
