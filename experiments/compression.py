"""Compression: LeNet-5 (Caffe) and LeNet-300-100 on MNIST, the matrix-normal paper's VGG on CIFAR-10.

Settings and results: docs/papers/radial-directional.md. Eight published results for LeNet-5 are in
experiments/published/radial_directional.json; `LeNet5Counts` counts them right.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments import published
from experiments.compressed import Compressed
from experiments.matrix_normal import Relevance
from experiments.networks import MLP, VGG, LeNet5
from experiments.spec import Experiment, Published
from kasuri import KTied, MatrixNormal, MatrixNormalDiagonal, MeanField, Radial, ScaledMatrixNormal
from kasuri.training import crop, flip


@dataclass(frozen=True)
class LeNet5Counts:
    """What LeNet-5-Caffe holds and does, counted right and as tables of pruned networks count it.

    conv 5x5 - pool - conv 5x5 - pool - dense - ReLU - dense to 10, no padding, for images of 28 x 28.

    Args:
        n1: channels of the first convolution (20 of the original).
        n2: channels of the second one (50).
        n3: inputs of the first dense layer that are left (800 = 50 · 16).
        n4: its outputs (500).

    Examples:
        >>> LeNet5Counts(20, 50, 800, 500).weights
        430500
    """

    n1: int
    n2: int
    n3: int
    n4: int

    @property
    def weights(self) -> int:
        """In matrices and kernels."""
        return 25 * self.n1 + 25 * self.n1 * self.n2 + self.n3 * self.n4 + 10 * self.n4

    @property
    def macs_and_biases(self) -> int:
        """Multiply-accumulates and biases, once each."""
        return self._convolutions + (self.n3 + 1) * self.n4 + (self.n4 + 1) * 10

    @property
    def table_weights(self) -> int:
        """As the table of the RDP paper counts: with a dense layer from 16·n2 to n3, without the last one."""
        convolutions = 25 * self.n1 + 25 * self.n1 * self.n2
        return convolutions + 16 * self.n2 * self.n3 + self.n3 * self.n4

    @property
    def table_flops(self) -> int:
        """As that table counts, with the same layer that does not exist."""
        return self._convolutions + (16 * self.n2 + 1) * self.n3 + (self.n3 + 1) * self.n4

    @property
    def _convolutions(self) -> int:
        return 26 * 24**2 * self.n1 + (25 * self.n1 + 1) * 8**2 * self.n2


LENET5 = published.table("radial_directional", "lenet5")
_COUNTS = {name: LeNet5Counts(*row["widths"]) for name, row in LENET5.items()}
_RIVALS = {
    name: {
        "weights": counts.weights,
        "flops": counts.macs_and_biases,
        "error": LENET5[name]["error_percent"] / 100,
    }
    for name, counts in _COUNTS.items()
}
_FAMILIES: Mapping[str, dict[str, Any]] = {
    "mean-field": {"family": MeanField()},
    "k-tied-2": {"family": KTied(rank=2), "criterion": "snr"},
    "matrix-normal": {"family": MatrixNormal()},
    "mn-diagonal": {"family": MatrixNormalDiagonal()},
    "scaled-mn": {"family": ScaledMatrixNormal()},
}
# the paper's start and prior; its thresholds were set by eye, ours are found on validation data
_RADIAL: dict[str, Any] = {
    "family": Radial(grouping="double", factors=2, gap=0.1, min_gap=2e-3),
    "radial": (0.01, 0.001),
    "criterion": "log_mode",
    "estimator": "shared",
}
# directions cost as much as the data make of them, and a row that nothing needs costs nothing
_UNIFORM: dict[str, Any] = _RADIAL | {
    "family": replace(_RADIAL["family"], concentration="group"),
    "directions": "uniform",
    "criterion": "snr",
}
# one direction for a weight instead of two, whose costs add up
_SCALES: dict[str, Any] = _UNIFORM | {
    "family": replace(_UNIFORM["family"], double="scales", gap=0.3),
}
_AT_THE_END: dict[str, Any] = {"stages": 0, "hold": 0.05, "ramp": 0.45}


def _variants(base: Compressed) -> list[Compressed]:
    rows = [replace(base, variant=name, **options) for name, options in _FAMILIES.items()]
    if not base.stages:
        return [*rows, replace(base, variant="radial-double", **_RADIAL)]
    return [
        *rows,
        # what it is worth to take units out while training goes on; "radial-double" is as published
        replace(base, variant="radial-double", epochs=200, **_RADIAL, **_AT_THE_END),
        replace(base, variant="radial-double-in-stages", **_RADIAL),
        replace(base, variant="radial-double-uniform", **_UNIFORM),
        replace(base, variant="radial-scales-uniform", **_SCALES),
        replace(rows[0], variant="mean-field-at-the-end", **_AT_THE_END),
    ]


def _shorter(rows: list[Compressed], form: str, **changes: Any) -> list[Compressed]:
    """The same rows with other lengths; those without stages stay without."""
    always = ("epochs", "learning_rate", "samples")
    late = {name: value for name, value in changes.items() if name in always}
    return [
        replace(row, name=f"{row.name}-{form}", published=None, **(changes if row.stages else late))
        for row in rows
    ]


_BASE = Compressed(
    name="",
    variant="",
    title="",
    data="mnist",
    relevance="both",
    estimator="auto",
    batch_size=250,
    learning_rate=2e-3,
    epochs=60,  # 150 with a tolerance of 0.003 left 3 % fewer weights at the same validation error
    hold=0.01,
    ramp=0.06,
    stages=8,
    stage_tolerance=0.005,
    temperature=1.0,
    keep="last",
    samples=30,
)

# --- LeNet-5; within a budget, with a long last part for what is left: pictures as they are, or moved by up
# to two pixels, which more epochs see in more places

_LENET5 = _variants(
    replace(
        _BASE,
        name="compression/lenet5",
        title="MNIST, LeNet-5-Caffe 20-50-500: what is left at 1 % error",
        options={"flat": False},
        network=LeNet5(),
        rivals=_RIVALS,
    )
)
_LAST: dict[str, Any] = {"epochs": 100, "last": 0.5, "last_temperature": 0.1}
_WEIGHTS: dict[str, Any] = {"budget": 2700}
_OPERATIONS: dict[str, Any] = {"budget": 100_000, "price": "macs"}
_MOVED: dict[str, Any] = {"augment": crop(2)}
_BUDGETS: Mapping[str, dict[str, Any]] = {
    "2700-weights": _WEIGHTS,
    "2700-weights-moved": _WEIGHTS | _MOVED,
    "100k-operations": _OPERATIONS,
    "100k-operations-moved": _OPERATIONS | _MOVED,
    # with biases just below the fewest published, 111,604
    "109k-operations-moved": _OPERATIONS | _MOVED | {"budget": 109_000},
    "2700-weights-moved-long": _WEIGHTS | _MOVED | {"epochs": 200},
    "100k-operations-moved-long": _OPERATIONS | _MOVED | {"epochs": 200},
}
_WITHIN = [
    replace(row, variant=f"{row.variant}-{suffix}", **(_LAST | changes))
    for row in _LENET5
    if row.variant in ("mean-field", "k-tied-2", "matrix-normal", "scaled-mn")
    for suffix, changes in _BUDGETS.items()
]

# --- LeNet-300-100; with a long last part at a low temperature, as within budgets; then smaller cuts; then
# less noise before as well

_LENET300 = _variants(
    replace(
        _BASE,
        name="compression/lenet300",
        title="MNIST, LeNet-300-100: what is left at 2 % error",
        network=MLP((300, 100)),
        error=0.02,
    )
)
_COLD: Mapping[str, dict[str, Any]] = {
    "cold-end": {},
    "careful": {"stage_tolerance": 0.001},
    "cold": {"stage_tolerance": 0.001, "temperature": 0.3},
}
_LENET300_COLD = [
    replace(row, variant=f"{row.variant}-{name}", **(_LAST | changes))
    for row in _LENET300
    if row.variant in ("mean-field", "k-tied-2", "matrix-normal")
    for name, changes in _COLD.items()
]

# --- VGG on CIFAR-10, at the size of Table 1 of the matrix-normal paper and four times as wide (Table 2)

_TABLE_1 = published.table("matrix_normal", "cifar10-group")
_PUBLISHED: Mapping[str, Published] = {
    **_TABLE_1,
    "matrix-normal-4x": published.table("matrix_normal", "cifar10-group-4x")["free"],
}
_ONCE = {
    row.variant: row
    for row in _variants(
        replace(
            _BASE,
            name="compression/vgg-cifar10",
            title="CIFAR-10, VGG-like networks of 62,270 and 246,940 weights: units taken out (Tables 1, 2)",
            data="cifar-10",
            options={"scale": "standard"},
            network=VGG(),
            bias=False,
            batch_size=128,
            learning_rate=1e-3,
            epochs=200,
            hold=0.15,
            ramp=0.2,
            stages=0,
            augment=flip,
            error=0.0,
            slack=0.01,  # one point of accuracy
        )
    )
}
_WIDE = VGG(tuple((width,) * 3 for width in (20, 40, 80, 40)))
_VGG = [
    *_ONCE.values(),
    *(
        replace(_ONCE[name], variant=f"{name}-4x", network=_WIDE)
        for name in ("mean-field", "matrix-normal")
    ),
    replace(  # the diagonal of the paper
        _ONCE["mn-diagonal"],
        variant="mn-diagonal-free",
        family=MatrixNormalDiagonal(diagonal="free"),
    ),
]
_VGG = [replace(row, published=_PUBLISHED.get(row.variant)) for row in _VGG]
_STAGED = [
    replace(row, variant=f"{row.variant}-in-stages", stages=6, stage_tolerance=0.01, published=None)
    for row in _VGG
    if row.variant.removesuffix("-4x") in ("mean-field", "matrix-normal")
]
_VGG += _STAGED
_SIDES: Mapping[str, Relevance] = {"inputs": "columns", "outputs": "rows"}
_VGG += [  # the paper's inputs are our columns
    replace(
        _ONCE["matrix-normal"],
        variant=f"matrix-normal-4x-{side}",
        network=_WIDE,
        relevance=structure,
        structure=structure,
    )
    for side, structure in _SIDES.items()
]

_SHORT: dict[str, Any] = {"ramp": 0.1, "stages": 6, "stage_tolerance": 0.01}
EXPERIMENTS: list[Experiment] = [
    *_LENET5,
    *_WITHIN,
    *_LENET300,
    *_LENET300_COLD,
    *_VGG,
    *_shorter(_LENET5, "short", epochs=25, **_SHORT),
    *_shorter(_LENET300, "short", epochs=50, **_SHORT),
    *_shorter([row for row in _STAGED if row.network != _WIDE], "medium", epochs=50, samples=10),
    *_shorter(_VGG, "short", epochs=10, learning_rate=2e-3, samples=10),
]
