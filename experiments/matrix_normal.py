"""The matrix-normal paper's sparsification experiments.

Settings: docs/papers/matrix-normal.md. The paper states no optimiser, batch size, number of epochs or
threshold; these are the usual ones of sparsifying networks. Its rows are inputs and its columns
outputs of a layer, here it is the other way round: the paper's row pruning is relevance="columns".
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments.networks import ELUMLP, VGG
from experiments.sparse import Relevance, Sparse
from experiments.spec import Experiment, Published
from kasuri.posteriors.base import Family
from kasuri.posteriors.matrix_normal import MatrixNormal, MatrixNormalDiagonal, ScaledMatrixNormal
from kasuri.posteriors.mean_field import MeanField
from kasuri.training.augment import flip

_FAMILIES: Mapping[str, Family] = {
    "mean-field": MeanField(),
    "matrix-normal": MatrixNormal(),
    "mn-diagonal-rank1": MatrixNormalDiagonal(diagonal="rank1"),
    "mn-diagonal-free": MatrixNormalDiagonal(diagonal="free"),
    "scaled-mn": ScaledMatrixNormal(),
}
_WIDE = VGG(tuple((width,) * 3 for width in (20, 40, 80, 40)))  # the "4x" network


def _rows(base: Sparse, published: Mapping[str, Published] | None = None) -> list[Sparse]:
    return [
        replace(base, variant=name, family=family, published=(published or {}).get(name))
        for name, family in _FAMILIES.items()
    ]


def _double(mean_field: Sparse) -> Sparse:
    """The control: a matrix normal's log σ moves by two factors at once, so here by two steps."""
    return replace(mean_field, variant="mean-field-double", spread_rate=2.0, published=None)


def _as(length: str, rows: list[Sparse], **changes: Any) -> list[Sparse]:
    """The same rows with fewer epochs; fewer data would mean more weight for the KL, and other networks."""
    return [replace(one, name=f"{one.name}-{length}", published=None, **changes) for one in rows]


_BASE = Sparse(
    name="",
    variant="",
    title="",
    network=ELUMLP((300, 300, 300)),
    estimator="auto",
    epochs=100,
    batch_size=100,
    learning_rate=1e-3,
    temperature=1.0,
    keep="last",
)

_CONNECTED = [
    row
    for data in ("mnist", "fashion-mnist")
    for row in _rows(
        replace(
            _BASE,
            name=f"matrix-normal/{data}-fc",
            title=f"{data}, 784-300-300-300-10 with ELU, ARD: accuracy and sparsity (Figures 1, 2)",
            data=data,
        )
    )
]
_CONV = _rows(
    replace(
        _BASE,
        name="matrix-normal/fashion-mnist-conv",
        title="Fashion-MNIST, convolutions 1-10-20-40-80 with ELU, ARD (Figure 3)",
        data="fashion-mnist",
        options={"flat": False},
        network=VGG(((10,), (20,), (40,), (80,))),
        bias=False,
    )
)
_CIFAR = replace(
    _BASE,
    data="cifar-10",
    options={"scale": "standard"},
    network=VGG(),
    bias=False,
    batch_size=128,
)
_VGG = _rows(
    replace(
        _CIFAR,
        name="matrix-normal/cifar10-vgg",
        title="CIFAR-10, VGG-like network of 62,270 weights, one learned prior constant (Figure 4)",
        relevance="constant",
    )
)
_VGG.append(_double(_VGG[0]))


def _left(weights: int) -> Published:
    return {"weights_left": (weights, None)}


_GROUPS = _rows(
    replace(
        _CIFAR,
        name="matrix-normal/cifar10-group",
        title="CIFAR-10, VGG-like network, group sparsification with flips (Figure 5, Table 1)",
        relevance="both",
        augment=flip,
    ),
    {
        "mean-field": _left(18_610),
        "matrix-normal": _left(27_764),
        "mn-diagonal-free": _left(19_936),
    },
)
_GROUPS += [
    _double(_GROUPS[0]),
    # one side alone; the paper's inputs are its rows and our columns
    replace(_GROUPS[1], variant="matrix-normal-inputs", relevance="columns", published=None),
    replace(_GROUPS[1], variant="matrix-normal-outputs", relevance="rows", published=None),
]


def _wide(variant: str, relevance: Relevance, published: Published | None = None) -> Sparse:
    return replace(
        _CIFAR,
        name="matrix-normal/cifar10-group-4x",
        variant=variant,
        title="CIFAR-10, VGG-like network of 246,940 weights, matrix normal (Table 2)",
        network=_WIDE,
        family=MatrixNormal(),
        relevance=relevance,
        augment=flip,
        epochs=200,
        hold=0.15,
        ramp=0.2,
        rise="exponential",
        published=published,
    )


_FOUR_TIMES = [
    _wide("free", "both", {"weights_left": (120_884, None), "accuracy": (0.871, None)}),
    # 3,120 of 4,527 and 413 of 540 are left in the paper, the dense layer not counted
    _wide("inputs", "columns"),
    _wide("outputs", "rows"),
]

_FULL = [*_CONNECTED, *_CONV, *_VGG, *_GROUPS, *_FOUR_TIMES]
_SMALL: dict[str, Any] = {"batch_size": 250, "learning_rate": 2e-3, "samples": 30}
_LARGE: dict[str, Any] = {"learning_rate": 2e-3, "samples": 10}
EXPERIMENTS: list[Experiment] = [
    *_FULL,
    # ten minutes for the slowest row on one thread
    *_as("quick", _CONNECTED, epochs=5, **_SMALL),
    *_as("quick", _CONV, epochs=10, **_SMALL),
    *_as("quick", [*_VGG, *_GROUPS], epochs=3, **_LARGE),
    *_as("quick", _FOUR_TIMES, epochs=2, **_LARGE),
    *_as("short", [*_CONNECTED, *_CONV], epochs=25, **_SMALL),
    *_as("short", [*_VGG, *_GROUPS], epochs=12, **_LARGE),
    *_as("medium", _VGG, epochs=24, **_LARGE),  # long enough for the KL of all rows to settle
    *_as("short", _FOUR_TIMES, epochs=6, **_LARGE),
]
