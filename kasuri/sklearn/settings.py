"""Settings of an estimator, checked and turned into arguments of `kasuri.fit`, when `fit` is called.

scikit-learn wants constructors without logic: parameters are looked at here, and nowhere before.
"""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import nn

from kasuri.checks import is_whole
from kasuri.objectives.balanced import Balanced
from kasuri.sklearn import names

RATE = 0.01
BATCH, LARGE_BATCH = 64, 256  # below MANY rows to train on, and above
MANY = 10_000
SPREAD = 2.0  # of biases in the first layer, standard deviations of a column


def network(inputs: int, hidden: Any, outputs: int, activation: Any) -> nn.Sequential:
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
    between = names.activation(activation)
    layers: list[nn.Module] = []
    for width in widths(hidden):
        layers += [_dense(inputs, width, spread=0.0 if layers else SPREAD), between()]
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
    hidden = hidden.tolist() if isinstance(hidden, np.ndarray) else hidden
    each = [hidden] if isinstance(hidden, Integral) else hidden
    counts = isinstance(each, Sequence) and all(is_whole(one, 1) for one in each)
    if isinstance(each, str) or not counts:
        raise ValueError(
            f"hidden_layer_sizes={hidden!r}: widths of the hidden layers, e.g. (50,) or (100, 50)"
        )
    return tuple(int(width) for width in each)


def of_fit(estimator: Any, rows: int) -> dict[str, Any]:
    """Arguments of `kasuri.fit` that an estimator's parameters stand for, with so many rows to train on."""
    batch = _count("batch_size", estimator.batch_size, "auto")
    return {
        "temperature": _temperature(estimator.temperature),
        "learning_rate": _number("learning_rate", estimator.learning_rate) or RATE,
        "batch_size": batch or (BATCH if rows < MANY else LARGE_BATCH),
        "epochs": _count("max_epochs", estimator.max_epochs, "auto"),
        "patience": _count("patience", estimator.patience, None),
    }


def draws(value: Any) -> int:
    """Number of draws of a prediction."""
    found = _count("n_samples", value, ...)
    assert found is not None
    return found


def is_chosen(temperature: Any) -> bool:
    """Whether the temperature is to be chosen; anything else is looked at by `of_fit`."""
    return _same(temperature, "auto")


def validation_share(value: Any, patience: Any) -> float:
    """Share of rows to hold out; 0 only if nothing waits for them."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < 1:
        raise ValueError(
            f"validation_fraction={value!r}: a share of the rows, from 0 to below 1, e.g. 0.1"
        )
    if value == 0 and patience is not None:
        raise ValueError(
            f"patience={patience} with validation_fraction=0: there are no held-out rows to wait for"
        )
    return float(value)


def _temperature(value: Any) -> float | Balanced | None:
    if isinstance(value, Balanced):
        return value
    return _number("temperature", value, zero=True)


def _count(name: str, value: Any, default: Any) -> int | None:
    """A whole number above 0; None for the default, which is "auto", None, or ... for none."""
    if default is not ... and _same(value, default):
        return None
    if not is_whole(value, 1):
        other = "" if default is ... else f", or {default!r}".replace("'", '"')
        raise ValueError(f"{name}={value!r}: a whole number above 0{other}")
    return int(value)


def _number(name: str, value: Any, zero: bool = False) -> float | None:
    if _same(value, "auto"):
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)
        or not (0 < float(value) < float("inf") or (zero and value == 0))
    ):
        raise ValueError(
            f'{name}={value!r}: a number {"from 0 on" if zero else "above 0"}, or "auto"'
        )
    return float(value)


def _same(value: Any, default: str | None) -> bool:
    """Equality that an array of numbers cannot confuse."""
    return value is None if default is None else isinstance(value, str) and value == default
