"""Parameters of an estimator, checked and turned into arguments of `kasuri.fit`, when `fit` is called.

scikit-learn wants constructors without logic: parameters are looked at here, and nowhere before.
"""

import copy
import inspect
import re
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import nn

from kasuri.checks import is_whole, near_misses
from kasuri.likelihoods import Bernoulli, Categorical, HeteroscedasticGaussian, Likelihood
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


def name_of(kind: type[Storable]) -> str:
    """The words of a class's name: what users write for it.

    Examples:
        >>> import kasuri
        >>> [name_of(kind) for kind in (kasuri.KTied, kasuri.MatrixNormal, kasuri.GroupARD)]
        ['k-tied', 'matrix-normal', 'group-ard']
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", kind.__name__).lower()


def named(parameter: str, name: str, base: type) -> Any:
    """The class of a name: all its words, or as many of the first ones as tell it from others.

    Every class that is derived from `base` is known, those of users too.

    Examples:
        >>> import kasuri
        >>> named("prior", "he", kasuri.Prior).__name__
        'HeNormal'
    """
    name = re.sub(r"[\s_-]+", "-", name.lower())
    name = _NAMES_OF_0_2.get(name, name)
    known = {
        name_of(kind): kind
        for kind in Storable.known.values()
        if issubclass(kind, base) and not inspect.isabstract(kind)
    }
    begun = [full for full in known if full == name or full.startswith(f"{name}-")]
    if name in known or len(begun) == 1:
        return known[name if name in known else begun[0]]
    raise ValueError(f"{parameter}={name!r}: {near_misses(name, begun or known)}")


def family(value: str | Family) -> Family:
    """The posterior family of a name, or the given one.

    Examples:
        >>> family("k-tied").rank
        2
    """
    made: Family = value if isinstance(value, Family) else named("posterior", value, Family)()
    return made


def prior(value: str | float | Prior) -> Prior:
    """A prior of its own for one fit: of a name, a number (its standard deviation), or a copy."""
    if isinstance(value, Prior):
        return copy.deepcopy(value)
    made: Prior = named("prior", value, Prior)() if isinstance(value, str) else Normal(float(value))
    return made


def likelihood(value: str | Likelihood, targets: int) -> Likelihood:
    """A likelihood of real targets for one fit: of a name, or a copy of the given one."""
    if isinstance(value, Likelihood):
        made = copy.deepcopy(value)
    else:
        kind = named("likelihood", value, Likelihood)
        is_wide = "outputs" in inspect.signature(kind).parameters
        made = kind(outputs=targets) if is_wide else kind()
    if isinstance(made, Categorical | Bernoulli):
        raise TypeError(f"likelihood={value!r} is one of classes: write BayesianClassifier")
    return made


def outputs(likelihood: Likelihood, targets: int) -> int:
    """Width of the last layer of a network for so many targets."""
    return 2 * targets if isinstance(likelihood, HeteroscedasticGaussian) else targets


def network(inputs: int, hidden: Any, outputs: int, activation: str) -> nn.Sequential:
    """Dense layers with He's initialisation, from torch's global generator.

    Units of the first layer have their thresholds all over the data, which are standardised: with biases of 0
    all would start in the middle, and curves of one or two columns be learned slowly.

    Args:
        inputs: number of columns.
        hidden: widths of the hidden layers, or one width.
        outputs: width of the last layer.
        activation: name of the function between layers.

    Examples:
        >>> [type(layer).__name__ for layer in network(3, (8,), 2, "tanh")]
        ['Linear', 'Tanh', 'Linear']
    """
    layers: list[nn.Module] = []
    for width in widths(hidden):
        layers.append(_dense(inputs, width, spread=0.0 if layers else SPREAD))
        layers.append(ACTIVATIONS[activation]())
        inputs = width
    return nn.Sequential(*layers, _dense(inputs, outputs))


def _dense(inputs: int, outputs: int, spread: float = 0.0) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, dtype=torch.float32)  # whatever the default type is
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.uniform_(layer.bias, -spread, spread)
    return layer


def widths(hidden: Any) -> tuple[int, ...]:
    """Widths of hidden layers; none is a linear model.

    Examples:
        >>> widths(30), widths([20, 10]), widths(())
        ((30,), (20, 10), ())
    """
    each = [hidden] if isinstance(hidden, Integral) else np.asarray(hidden).tolist()
    if not (isinstance(each, list) and all(is_whole(width, 1) for width in each)):
        raise ValueError(
            f"hidden_layer_sizes={hidden!r}: widths must be whole numbers above 0, e.g. (50,) or (100, 50)"
        )
    return tuple(each)


def of_fit(estimator: Any, rows: int) -> dict[str, Any]:
    """Arguments of `kasuri.fit` that an estimator's parameters stand for, with so many rows to train on."""
    rate, batch, epochs = estimator.learning_rate, estimator.batch_size, estimator.max_epochs
    usual = BATCH if rows < MANY else LARGE_BATCH
    return {
        "learning_rate": RATE if isinstance(rate, str) else float(rate),
        "batch_size": usual if isinstance(batch, str) else int(batch),
        "epochs": None if isinstance(epochs, str) else int(epochs),
    }


def draws(value: Any) -> int:
    """Number of draws of a prediction."""
    if not is_whole(value, 1):
        raise ValueError(f"n_samples must be a whole number above 0, got {value!r}")
    return int(value)
