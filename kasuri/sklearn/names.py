"""Names to objects: what a user writes as a string becomes a family, a prior, a likelihood, once."""

import copy
from collections.abc import Mapping
from numbers import Real
from typing import Any, TypeVar

from torch import nn

from kasuri.checks import near_misses
from kasuri.likelihoods import (
    Bernoulli,
    Categorical,
    GammaGaussian,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
)
from kasuri.posteriors.base import Family
from kasuri.posteriors.full_normal import FullNormal
from kasuri.posteriors.k_tied import KTied
from kasuri.posteriors.matrix_normal import MatrixNormal, MatrixNormalDiagonal, ScaledMatrixNormal
from kasuri.posteriors.mean_field import MeanField
from kasuri.posteriors.point import Point
from kasuri.posteriors.radial.family import Radial
from kasuri.posteriors.radial.prior import RadialPrior
from kasuri.priors.base import Prior
from kasuri.priors.normal import HeNormal, Normal
from kasuri.priors.relevance import ARD, GroupARD

FAMILIES: dict[str, type[Family]] = {
    "mean-field": MeanField,
    "k-tied": KTied,
    "matrix-normal": MatrixNormal,
    "matrix-normal-diagonal": MatrixNormalDiagonal,
    "scaled-matrix-normal": ScaledMatrixNormal,
    "full-normal": FullNormal,
    "radial": Radial,
    "deterministic": Point,
}
PRIORS: dict[str, type[Prior]] = {
    "he": HeNormal,
    "normal": Normal,
    "ard": ARD,
    "group-ard": GroupARD,
    "radial": RadialPrior,
}
LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "gamma": GammaGaussian,
    "heteroscedastic": HeteroscedasticGaussian,
}
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
_T = TypeVar("_T")


def family(value: Any) -> Family:
    """The posterior family of a name, or the given one.

    Examples:
        >>> family("k-tied")
        KTied(scale=0.01, noise=0.1, max_scale=None, mean='given', rank=2)
    """
    if isinstance(value, Family):
        return value
    return _named("posterior", value, FAMILIES, "a family such as kasuri.KTied(rank=1)")()


def prior(value: Any) -> Prior:
    """A prior of its own for one fit: of a name, a number (its standard deviation), or a copy."""
    if isinstance(value, Prior):
        return copy.deepcopy(value)
    if not isinstance(value, bool) and isinstance(value, Real):
        return Normal(float(value))
    what = "a standard deviation such as 0.5, or a prior such as kasuri.Normal(0.5)"
    return _named("prior", value, PRIORS, what)()


def likelihood(value: Any, targets: int) -> Likelihood:
    """A likelihood of real targets for one fit: of a name, or a copy of the given one."""
    if isinstance(value, Categorical | Bernoulli):
        raise TypeError(f"likelihood={value!r} is one of classes: write BayesianClassifier")
    if isinstance(value, Likelihood):
        return copy.deepcopy(value)
    what = "a likelihood such as kasuri.Gaussian(0.1)"
    kind = _named("likelihood", value, LIKELIHOODS, what)
    return GammaGaussian(outputs=targets) if kind is GammaGaussian else kind()


def outputs(likelihood: Likelihood, targets: int) -> int:
    """Width of the last layer of a network for so many targets.

    Examples:
        >>> outputs(Gaussian(), targets=3), outputs(HeteroscedasticGaussian(), targets=3)
        (3, 6)
    """
    return 2 * targets if isinstance(likelihood, HeteroscedasticGaussian) else targets


def activation(value: Any) -> type[nn.Module]:
    """The module class of a name."""
    return _named("activation", value, ACTIVATIONS, "nothing else")


def _named(parameter: str, value: Any, known: Mapping[str, _T], otherwise: str) -> _T:
    if isinstance(value, str) and value in known:
        return known[value]
    names = ", ".join(map(repr, known))
    if isinstance(value, str):
        raise ValueError(f"{parameter}={value!r}: {near_misses(value, known)}")
    raise TypeError(f"{parameter}={value!r}: write one of {names}, or {otherwise}")
