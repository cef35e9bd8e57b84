"""The values that the k-tied paper and its supplement print.

Standard errors are over test examples (of the gradient SNR and the −ELBO by steps: over three
seeds). Parameter counts are rounded to thousands.
"""

from collections.abc import Mapping

from experiments.spec import Published


def _values(
    neg_elbo: tuple[float, float],
    nll: tuple[float, float],
    accuracy_percent: tuple[float, float],
    thousand_parameters: float | None = None,
) -> Published:
    accuracy = (accuracy_percent[0] / 100, accuracy_percent[1] / 100)
    found: dict[str, tuple[float, float | None]] = {
        "neg_elbo": neg_elbo,
        "nll": nll,
        "accuracy": accuracy,
    }
    if thousand_parameters is not None:
        found["parameters"] = (thousand_parameters * 1e3, None)
    return found


MNIST_MLP = {
    "mean-field": _values((0.501, 0.0061), (0.133, 0.004), (96.8, 0.18), 957),
    "k-tied-1": _values((0.539, 0.0063), (0.155, 0.0043), (96.1, 0.19), 482),
    "k-tied-2": _values((0.520, 0.0063), (0.129, 0.0039), (96.8, 0.18), 484),
    "k-tied-3": _values((0.497, 0.006), (0.120, 0.0038), (96.9, 0.18), 486),
}
IMDB_LSTM = {
    "mean-field": _values((0.538, 0.0054), (0.478, 0.0052), (79.5, 0.26), 2823),
    "k-tied-1": _values((0.592, 0.0041), (0.512, 0.004), (77.6, 0.26), 2693),
    "k-tied-2": _values((0.560, 0.0042), (0.484, 0.0041), (78.2, 0.26), 2694),
    "k-tied-3": _values((0.550, 0.0051), (0.491, 0.005), (78.8, 0.26), 2695),
}
CIFAR100_LENET = {
    "mean-field": _values((3.72, 0.018), (2.16, 0.016), (43.9, 0.5), 4405),
    "k-tied-1": _values((3.65, 0.017), (2.12, 0.015), (45.5, 0.5), 2262),
    "k-tied-2": _values((3.76, 0.019), (2.15, 0.016), (44.3, 0.5), 2268),
    "k-tied-3": _values((3.73, 0.018), (2.13, 0.016), (44.3, 0.5), 2273),
}
_HE_PRIOR = {
    0: _values((1.379, 0.0096), (0.6384, 0.0096), (79.0, 0.41)),
    1: _values((5.428, 0.018), (1.485, 0.0056), (57.0, 0.5)),
    2: _values((1.448, 0.0097), (0.648, 0.0079), (78.8, 0.41)),
    3: _values((1.411, 0.0097), (0.646, 0.0079), (78.9, 0.41)),
}
TRUNCATED: Mapping[str, Mapping[int, Published]] = {
    "k-tied/mnist-mlp": {
        0: _values((0.431, 0.0057), (0.100, 0.0034), (97.6, 0.15)),
        1: _values((3.41, 0.019), (0.677, 0.004), (93.6, 0.25)),
        2: _values((0.456, 0.0059), (0.107, 0.0033), (97.6, 0.15)),
        3: _values((0.450, 0.0059), (0.106, 0.0033), (97.6, 0.15)),
    },
    "k-tied/imdb-lstm": {
        0: _values((0.536, 0.0058), (0.493, 0.0057), (80.1, 0.25)),
        1: _values((0.687, 0.0058), (0.491, 0.0056), (80.0, 0.25)),
        2: _values((0.621, 0.0058), (0.494, 0.0057), (80.1, 0.25)),
        3: _values((0.595, 0.0058), (0.493, 0.0056), (80.1, 0.25)),
    },
    "k-tied/cifar100-lenet": {
        0: _values((3.83, 0.02), (2.23, 0.017), (42.1, 0.49)),
        1: _values((4.33, 0.021), (2.30, 0.016), (41.7, 0.49)),
        2: _values((3.88, 0.02), (2.24, 0.017), (42.2, 0.49)),
        3: _values((3.86, 0.02), (2.24, 0.017), (42.1, 0.49)),
    },
    "k-tied/resnet-he-prior": _HE_PRIOR,
}


def _steps(
    neg_elbo: tuple[tuple[float, float], ...], snr: tuple[tuple[float, float], ...]
) -> Published:
    steps = (1000, 5000, 9000)
    found: dict[str, tuple[float, float | None]] = {
        f"neg_elbo_{step}": value for step, value in zip(steps, neg_elbo, strict=True)
    }
    return found | {f"snr_median_{step}": value for step, value in zip(steps, snr, strict=True)}


CONVERGENCE = {
    "mean-field": _steps(
        ((42.16, 0.07), (26.52, 0.016), (15.39, 0.016)),
        ((4.13, 0.027), (4.45, 0.091), (3.21, 0.035)),
    ),
    "k-tied-1": _steps(
        ((43.11, 0.039), (14.85, 0.017), (2.06, 0.027)), ((5840, 190), (158, 3.8), (5.3, 0.2))
    ),
    "k-tied-2": _steps(
        ((42.74, 0.09), (13.97, 0.023), (1.82, 0.017)), ((7500, 240), (140, 11), (4.3, 0.26))
    ),
    "k-tied-3": _steps(
        ((42.63, 0.068), (13.61, 0.02), (1.80, 0.031)), ((7000, 270), (117, 1.7), (4.1, 0.2))
    ),
}
