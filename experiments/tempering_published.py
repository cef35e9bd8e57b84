"""Values of the slides' two figures, read from the vector graphics of the authors' public code.

The NLL is that of a draw (Gibbs); the calibration error is an average over batches of 128.
"""

from collections.abc import Mapping

from experiments.spec import Published


def _values(accuracy: float, ece: float, nll: float, confidence: float) -> Published:
    return {
        "accuracy": (accuracy, None),
        "ece_batched": (ece, None),
        "gibbs_nll": (nll, None),
        "confidence": (confidence, None),
    }


MNIST: Mapping[float, Published] = {
    0.001: _values(0.9774, 0.0192, 0.0781, 0.9826),
    0.005: _values(0.9782, 0.0205, 0.0721, 0.9773),
    0.01: _values(0.9795, 0.0212, 0.0698, 0.9720),
    0.05: _values(0.9727, 0.0382, 0.1014, 0.9476),
    0.1: _values(0.9647, 0.0510, 0.1399, 0.9250),
    0.5: _values(0.9209, 0.1117, 0.3237, 0.8209),
    1.0: _values(0.9028, 0.1656, 0.4436, 0.7437),
    5.0: _values(0.7898, 0.4024, 1.1149, 0.3881),
    10.0: _values(0.5543, 0.3682, 1.8074, 0.1874),
    50.0: _values(0.0912, 0.0202, 2.3027, 0.1043),
    100.0: _values(0.0968, 0.0325, 2.3033, 0.1039),
}
CIFAR10: Mapping[float, Published] = {
    0.001: _values(0.8532, 0.0953, 0.6193, 0.9332),
    0.005: _values(0.8423, 0.0913, 0.5924, 0.9211),
    0.01: _values(0.8748, 0.0702, 0.4298, 0.9228),
    0.05: _values(0.8388, 0.0708, 0.5068, 0.8786),
    0.1: _values(0.8339, 0.0665, 0.5071, 0.8602),
    0.5: _values(0.7932, 0.0663, 0.6100, 0.8001),
    1.0: _values(0.7396, 0.0730, 0.7483, 0.7608),
    5.0: _values(0.5564, 0.0911, 1.2588, 0.6010),
    10.0: _values(0.5506, 0.0919, 1.2575, 0.5718),
    50.0: _values(0.2929, 0.0692, 1.7726, 0.3065),
    100.0: _values(0.1795, 0.0505, 2.0306, 0.2118),
}
