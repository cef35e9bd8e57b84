"""The matrix-normal paper's sparsification experiments.

Settings: docs/papers/matrix-normal.md. The paper states no optimiser, batch size, number of epochs or
threshold; these are the usual ones of sparsifying networks. Its rows are inputs and its columns
outputs of a layer, here it is the other way round: the paper's row pruning is relevance="columns".
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tyro.conf import Fixed

import kasuri
from experiments import published
from experiments.data import Dataset, Split
from experiments.networks import ELUMLP, VGG
from experiments.spec import Experiment, form, table
from experiments.supervised import Scored, Supervised
from kasuri.streams import Stream, mix
from kasuri.training import flip

VALIDATED = 2000  # validation examples that a threshold is chosen on
Relevance = Literal["constant", "weights", "rows", "columns", "both"]


@dataclass(frozen=True, kw_only=True)
class Sparse(Supervised):
    """A Bayesian network under a prior that finds out what is needed, then pruned."""

    # whose precisions the prior fits: one "constant" for all weights, those of single "weights" (ARD), of
    # "rows" (outputs), of "columns" (inputs), or the products of "both"
    relevance: Relevance = "weights"
    hold: float = 0.025  # share of the epochs in which the KL counts nothing
    ramp: float = 0.075  # share of the epochs in which its weight then rises to 1; 0 for at once
    rise: Literal["linear", "exponential"] = "linear"  # exponential from 0.01 on
    # signal-to-noise ratios mean²/variance, falling. What is below the first of them at which the validation
    # loss grows by no more than `tolerance` is dropped
    thresholds: Fixed[tuple[float, ...]] = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.003, 0.001, 0.0)
    tolerance: float = 0.02  # nats per example

    def prior(self) -> kasuri.Prior:
        if self.relevance == "constant":
            return kasuri.Normal(0.1, learn="closed form")
        if self.relevance == "weights":
            return kasuri.ARD()
        return kasuri.GroupARD(groups=self.relevance)

    def objective(self, data: Dataset) -> dict[str, Any]:
        batches = -(-len(data.train) // self.batch_size)
        hold, ramp = self.hold * self.epochs, self.ramp * self.epochs
        weight: Any = 1.0
        if self.ramp and self.rise == "linear":
            weight = kasuri.schedules.HoldThenRamp(hold, ramp, batches)
        elif self.ramp:
            weight = kasuri.schedules.Exponential(ramp, batches, start=0.01, hold=hold)
        return {**super().objective(data), "kl_weight": weight}

    def test(self, members: Sequence[kasuri.Fitted], data: Dataset, seed: int) -> Scored:
        """As in every experiment, and once more without what is irrelevant."""
        metrics, figures = super().test(members, data, seed)
        elbo = members[0].objective
        structures = {"constant": ["weights"], "both": ["weights", "rows", "columns"]}
        structure = structures.get(self.relevance, [self.relevance])
        criterion = "snr" if self.relevance in ("constant", "weights") else "group_ard"

        def scores(model: Any, part: Split) -> dict[str, float]:
            return kasuri.evaluate(
                model,
                part,
                samples=self.samples,
                seed=mix(seed, Stream.EVALUATION),
                likelihood=elbo.likelihood,
            )

        check = data.valid.subset(VALIDATED)
        limit = scores(elbo.net, check)["nll"] + self.tolerance
        for threshold in self.thresholds:
            net, report = kasuri.compress(
                elbo, criterion=criterion, structure=structure, threshold=threshold
            )
            if scores(net, check)["nll"] <= limit:
                break
        pruned = scores(net, data.test)
        left = {
            "threshold": threshold,
            "weights_left": float(report.total.weights_left),
            "rows_left": float(report.total.rows_left),
            "columns_left": float(report.total.columns_left),
            "accuracy_pruned": pruned["accuracy"],
            "nll_pruned": pruned["nll"],
        }
        dropped = {"layers": [asdict(matrix) for matrix in report.matrices]}
        return metrics | left, figures | {"sparsity": dropped}


_FAMILIES: Mapping[str, Mapping[str, kasuri.Family]] = {
    "mean-field": {"family": kasuri.MeanField()},
    "matrix-normal": {"family": kasuri.MatrixNormal()},
    "mn-diagonal-rank1": {"family": kasuri.MatrixNormalDiagonal(diagonal="rank1")},
    "mn-diagonal-free": {"family": kasuri.MatrixNormalDiagonal(diagonal="free")},
    "scaled-mn": {"family": kasuri.ScaledMatrixNormal()},
}


def _double(mean_field: Sparse) -> Sparse:
    """The control: a matrix normal's log σ moves by two factors at once, so here by two steps."""
    return replace(mean_field, variant="mean-field-double", spread_rate=2.0, published=None)


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
    for row in table(
        replace(
            _BASE,
            name=f"matrix-normal/{data}-fc",
            title=f"{data}, 784-300-300-300-10 with ELU, ARD: accuracy and sparsity (Figures 1, 2)",
            data=data,
        ),
        _FAMILIES,
    )
]
_CONV = table(
    replace(
        _BASE,
        name="matrix-normal/fashion-mnist-conv",
        title="Fashion-MNIST, convolutions 1-10-20-40-80 with ELU, ARD (Figure 3)",
        data="fashion-mnist",
        options={"flat": False},
        network=VGG(((10,), (20,), (40,), (80,))),
        bias=False,
    ),
    _FAMILIES,
)
_CIFAR = replace(
    _BASE,
    data="cifar-10",
    options={"scale": "standard"},
    network=VGG(),
    bias=False,
    batch_size=128,
)
_VGG = table(
    replace(
        _CIFAR,
        name="matrix-normal/cifar10-vgg",
        title="CIFAR-10, VGG-like network of 62,270 weights, one learned prior constant (Figure 4)",
        relevance="constant",
    ),
    _FAMILIES,
)
_VGG.append(_double(_VGG[0]))
_GROUPS = table(
    replace(
        _CIFAR,
        name="matrix-normal/cifar10-group",
        title="CIFAR-10, VGG-like network, group sparsification with flips (Figure 5, Table 1)",
        relevance="both",
        augment=flip,
    ),
    _FAMILIES,
    published.table("matrix_normal", "cifar10-group"),
)
_GROUPS += [
    _double(_GROUPS[0]),
    # one side alone; the paper's inputs are its rows and our columns
    replace(_GROUPS[1], variant="matrix-normal-inputs", relevance="columns", published=None),
    replace(_GROUPS[1], variant="matrix-normal-outputs", relevance="rows", published=None),
]
_WIDE = replace(
    _CIFAR,
    name="matrix-normal/cifar10-group-4x",
    variant="free",
    title="CIFAR-10, VGG-like network of 246,940 weights, matrix normal (Table 2)",
    network=VGG(tuple((width,) * 3 for width in (20, 40, 80, 40))),
    family=kasuri.MatrixNormal(),
    relevance="both",
    augment=flip,
    epochs=200,
    hold=0.15,
    ramp=0.2,
    rise="exponential",
)
_FOUR_TIMES = [
    replace(_WIDE, published=published.table("matrix_normal", "cifar10-group-4x")["free"]),
    replace(_WIDE, variant="inputs", relevance="columns"),
    replace(_WIDE, variant="outputs", relevance="rows"),
]

_SMALL: dict[str, Any] = {"batch_size": 250, "learning_rate": 2e-3, "samples": 30}
_LARGE: dict[str, Any] = {"learning_rate": 2e-3, "samples": 10}
# shorter forms have fewer epochs: fewer data would mean more weight for the KL, and other networks
EXPERIMENTS: list[Experiment] = [
    *_CONNECTED,
    *_CONV,
    *_VGG,
    *_GROUPS,
    *_FOUR_TIMES,
    *form([*_CONNECTED, *_CONV], "short", epochs=25, **_SMALL),
    *form([*_VGG, *_GROUPS], "short", epochs=12, **_LARGE),
    *form(_VGG, "medium", epochs=24, **_LARGE),  # long enough for the KL of all rows to settle
    *form(_FOUR_TIMES, "short", epochs=6, **_LARGE),
]
