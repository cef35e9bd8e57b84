"""Parameters of an estimator, checked and turned into arguments of `kasuri.fit`, when `fit` is called.

scikit-learn wants constructors without logic: parameters are looked at here, and nowhere before.
"""

import inspect
import itertools
import re
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import nn

from kasuri.checks import is_whole, near_misses
from kasuri.likelihoods import Bernoulli, Categorical, Likelihood
from kasuri.objectives.temperature import Balanced
from kasuri.posteriors.base import Family
from kasuri.priors.base import Prior
from kasuri.priors.normal import Normal
from kasuri.storage import Storable

RATE = 0.01
BATCH, LARGE_BATCH = 64, 256  # below MANY rows to train on, and above
MANY = 10_000
SPREAD = 2.0  # of biases in the first layer, standard deviations of a column
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
_AUTO = StrOptions({"auto"})
_COUNT = Interval(Integral, 1, None, closed="left")
CONSTRAINTS: dict[str, list[Any]] = {
    "hidden_layer_sizes": ["array-like", _COUNT],
    "activation": [StrOptions(set(ACTIVATIONS))],
    "posterior": [str, Family],
    "prior": [str, Interval(Real, 0, None, closed="neither"), Prior],
    "temperature": [_AUTO, Interval(Real, 0, None, closed="left"), Balanced],
    "learning_rate": [_AUTO, Interval(Real, 0, None, closed="neither")],
    "batch_size": [_AUTO, _COUNT],
    "max_epochs": [_AUTO, _COUNT],
    "patience": [None, _COUNT],
    "validation_fraction": [Interval(Real, 0, 1, closed="left")],
    "n_samples": [_COUNT],
    "random_state": ["random_state"],
    "verbose": ["boolean"],
}
_NAMES_OF_0_2 = {"deterministic": "point"}


def named(parameter: str, name: str, base: type) -> Any:
    """The class of a name: all words of its own name, or as many of the first ones as tell it from others.

    Every class that is derived from `base` is known, those of users too.

    Examples:
        >>> import kasuri
        >>> named("prior", "he", kasuri.Prior).__name__, named("prior", "group-ard", kasuri.Prior).__name__
        ('HeNormal', 'GroupARD')
    """
    name = re.sub(r"[\s_-]+", "-", name.lower())
    name = _NAMES_OF_0_2.get(name, name)
    between_words = r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    known = {
        re.sub(between_words, "-", kind.__name__).lower(): kind
        for kind in Storable.known.values()
        if issubclass(kind, base) and not inspect.isabstract(kind)
    }
    begun = [full for full in known if full.startswith(f"{name}-")]
    if name in known or len(begun) == 1:
        return known.get(name) or known[begun[0]]
    raise ValueError(f"{parameter}={name!r}: {near_misses(name, begun or known)}")


def made(parameter: str, value: Any, base: type, **options: Any) -> Any:
    """The object of a name, with those of the options that its class has; or the given object."""
    if not isinstance(value, str):
        return value
    kind = named(parameter, value, base)
    known = inspect.signature(kind).parameters
    return kind(**{name: option for name, option in options.items() if name in known})


def prior(value: str | float | Prior) -> Any:
    """The prior of a name, of a number (its standard deviation), or the given one."""
    return Normal(float(value)) if isinstance(value, Real) else made("prior", value, Prior)


def likelihood(value: str | Likelihood, targets: int) -> Any:
    """The likelihood of a name for so many real targets, or the given one."""
    noise = made("likelihood", value, Likelihood, outputs=targets)
    if isinstance(noise, Categorical | Bernoulli):
        raise TypeError(f"likelihood={value!r} is for classes: write BayesianClassifier")
    return noise


def network(inputs: int, widths: tuple[int, ...], outputs: int, activation: str) -> nn.Sequential:
    """Dense layers with He's initialisation, from torch's global generator.

    Units of the first layer have their thresholds all over the data, which are standardised: with biases of 0
    all would start in the middle, and curves of one or two columns be learned slowly.
    """
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise((inputs, *widths, outputs)):
        linear = nn.Linear(before, after, dtype=torch.float32)  # whatever the default type is
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        spread = 0.0 if layers or not widths else SPREAD
        nn.init.uniform_(linear.bias, -spread, spread)
        layers += [linear, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


def widths(hidden: Any) -> tuple[int, ...]:
    """Widths of hidden layers, of one width or several; none is a linear model.

    Examples:
        >>> widths(30), widths([20, 10]), widths(())
        ((30,), (20, 10), ())
    """
    sizes = np.atleast_1d(hidden).tolist()
    if not all(is_whole(width, 1) for width in sizes):
        raise ValueError(
            f"hidden_layer_sizes={hidden!r}: widths must be whole numbers above 0, e.g. (100, 50)"
        )
    return tuple(sizes)


def adam(objective: Any, rate: float) -> torch.optim.Optimizer:
    """Adam for all parameters."""
    return torch.optim.Adam(objective.parameters(), rate, fused=True)


def of_fit(estimator: Any, rows: int) -> dict[str, Any]:
    """Arguments of `kasuri.fit` that an estimator's parameters stand for, with so many rows to train on."""
    rate, batch, epochs = estimator.learning_rate, estimator.batch_size, estimator.max_epochs
    usual = BATCH if rows < MANY else LARGE_BATCH
    return {
        # at temperature 1 natural steps reach the optimum, which underfits small tables; Adam stops before
        "optimiser": partial(adam, rate=RATE if isinstance(rate, str) else float(rate)),
        "batch_size": usual if isinstance(batch, str) else int(batch),
        "epochs": None if isinstance(epochs, str) else int(epochs),
        "show": type(estimator).__name__ if estimator.verbose else False,
    }
