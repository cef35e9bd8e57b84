"""The slides on overparameterised networks, and a little beyond.

Settings: docs/papers/overparameterised.md. Learning rate and epochs behind the slides' figures are not
stated; of the two rates that the authors' public job files have for 50 epochs of MNIST this one has the lower
validation NLL at τ = 0.001, and comes closer to the figure. Priors have standard deviation 0.2, as in that
code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments import tempering_published as published
from experiments.networks import MLP
from experiments.spec import Experiment
from experiments.tempered import Tempered, sweep
from experiments.tempered_networks import CifarResNet, TwoLayer
from experiments.wide import Wide, widths
from kasuri.posteriors.base import Family
from kasuri.posteriors.k_tied import KTied
from kasuri.posteriors.matrix_normal import MatrixNormal
from kasuri.posteriors.mean_field import MeanField
from kasuri.posteriors.radial.family import Radial
from kasuri.training.augment import compose, crop, flip

_TAUS = tuple(published.MNIST)
_SEVEN = (0.001, 0.01, 0.1, 1.0, 5.0, 10.0, 100.0)
_STRUCTURE = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
_START: dict[str, Any] = {"scale": 1e-4, "noise": 0.01}  # initial standard deviations of the slides

_TOY = widths(
    Wide(
        name="tempering/toy",
        variant="",
        title="f = (1/N) Σ w_j on 30 targets of mean 1.5: training against the closed form",
        kind="toy",
        tau=0.1,
        epochs=1500,
        learning_rate=0.05,
        draws=1,
    ),
    (1, 10, 100, 1000, 10_000),
)
_WIDTH = widths(
    Wide(
        name="tempering/width",
        variant="",
        title="One hidden layer with ReLU on 32 points of 2 sin 3x: does a wider network ignore its data?",
    ),
    (8, 16, 32, 64, 128, 256, 512, 1024, 2048),
)
_MNIST = Tempered(
    name="tempering/mnist",
    variant="",
    title="MNIST, one hidden layer of 100 with ReLU: η = τ p / N (first figure of the slides)",
    data="mnist",
    options={"scale": "unit", "valid": 5000},
    outside="fashion-mnist",
    network=TwoLayer(100),
    family=MeanField(**_START),
    bias=False,
    estimator="shared",
    epochs=50,
    batch_size=128,
    learning_rate=1e-2,
    drop_every=100,
    keep="last",
    prior_scale=0.2,
    space={"learning_rate": (1e-3, 1e-2)},
)
_CIFAR = Tempered(
    name="tempering/cifar10",
    variant="",
    title="CIFAR-10, ResNet-20: η = τ p / N (second figure of the slides)",
    data="cifar-10",
    options={"scale": "standard"},
    network=CifarResNet(3),
    family=MeanField(**_START),
    estimator="shared",
    epochs=200,
    batch_size=128,
    learning_rate=0.01,
    drop_every=100,
    keep="last",
    prior_scale=0.2,
    augment=compose(flip, crop(4)),
)
_FAMILIES: Mapping[str, Family] = {
    "mean-field": MeanField(**_START),
    "k-tied-2": KTied(rank=2, **_START),
    "matrix-normal": MatrixNormal(**_START),
    "radial-row": Radial(grouping="row"),
}
_TABLE = Tempered(
    name="tempering/structure-concrete",
    variant="",
    title="UCI concrete, one hidden layer of 50: does structure move the best temperature?",
    data="uci/concrete",
    network=MLP((50,)),
    estimator="auto",
    learning_rate=0.01,
    keep="last",
    curves=("nll", "gibbs_nll", "rmse", "coverage_90"),
)


def _beside(rows: Sequence[Tempered], values: Mapping[float, Any]) -> list[Tempered]:
    return [replace(one, published=values.get(one.tau)) for one in rows]


def _structured(base: Tempered, taus: Sequence[float]) -> list[Tempered]:
    """Every family at every τ."""
    return [
        row
        for name, family in _FAMILIES.items()
        for row in sweep(base, taus, variant=f"{name}-", family=family, series=name)
    ]


def _short(rows: Sequence[Tempered], **changes: Any) -> list[Tempered]:
    """The same rows with fewer data and epochs; published values are of the whole run."""
    return [replace(one, name=f"{one.name}-short", **changes) for one in rows]


_FULL_MNIST = _beside(sweep(_MNIST, _TAUS), published.MNIST)
_FULL_CIFAR = _beside(sweep(_CIFAR, _TAUS), published.CIFAR10)
_FULL_STRUCTURE = _structured(
    replace(
        _MNIST,
        name="tempering/structure-mnist",
        title="MNIST as in the slides, other posteriors: does structure move the best temperature?",
        estimator="auto",
        curves=("accuracy", "gibbs_nll", "nll", "ece", "ood_auroc_entropy"),
    ),
    _STRUCTURE,
)
_SHORT_CIFAR = _short(
    [one for one in _FULL_CIFAR if one.tau in _SEVEN],
    title="CIFAR-10, ResNet-8 of width 8-16-32 on 10,000 images, 20 epochs: η = τ p / N",
    network=CifarResNet(1, (8, 16, 32)),
    limit=10_000,
    epochs=20,
    drop_every=0,
    samples=10,
)

EXPERIMENTS: list[Experiment] = [
    *_TOY,
    *_WIDTH,
    *[
        replace(one, name="tempering/width-short", epochs=1000)
        for one in _WIDTH
        if one.neurons in (8, 128, 2048)
    ],
    *_FULL_MNIST,
    *_short([one for one in _FULL_MNIST if one.tau in _SEVEN], limit=10_000, epochs=20, samples=30),
    *_FULL_CIFAR,
    *_SHORT_CIFAR,
    *_FULL_STRUCTURE,
    *_short(
        [one for one in _FULL_STRUCTURE if one.tau in (0.001, 0.01, 0.1, 1.0)],
        limit=10_000,
        epochs=20,
        samples=30,
    ),
    *_structured(_TABLE, (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)),
    *_short(_structured(_TABLE, (0.01, 0.1, 1.0)), epochs=60, samples=30),
]
