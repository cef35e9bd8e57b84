"""The slides on overparameterised networks, and a little beyond.

Settings: docs/papers/overparameterised.md. Learning rate and epochs behind the slides' figures are not
stated; of the two rates that the authors' public job files have for 50 epochs of MNIST this one has the lower
validation NLL at τ = 0.001, and comes closer to the figure. Priors have standard deviation 0.2, as in that
code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.optim.lr_scheduler import StepLR
from tyro.conf import Fixed

import kasuri
from experiments import published
from experiments.data import Dataset
from experiments.networks import MLP, CifarResNet, TwoLayer
from experiments.spec import Experiment, Published, form, table
from experiments.supervised import Scored, Supervised
from experiments.wide import Wide, point, widths
from kasuri.training import MakeScheduler, compose, crop, flip

DIAGNOSED = 2000  # validation rows
BATCH = 128  # over which the slides' code averages the calibration error


@dataclass(frozen=True, kw_only=True)
class Tempered(Supervised):
    """A Bayesian network at η = τ p / N, one point of a curve over τ.

    Beside the usual scores there is ece_batched, the calibration error averaged over batches of 128. The KL
    counts in full from the first batch on.
    """

    tau: float = 1.0  # τ; N is the number of random weights
    drop_every: int = 0  # epochs after which the rate falls to a tenth, repeatedly; 0 for never
    series: Fixed[str] = "mean-field"  # name of the curve that this is a point of
    # scores that the report draws over τ
    curves: Fixed[tuple[str, ...]] = ("accuracy", "gibbs_nll", "ece_batched", "confidence")

    def objective(self, data: Dataset) -> dict[str, Any]:
        return {"prior": self.prior(), "temperature": kasuri.Balanced(self.tau), "kl_weight": 1.0}

    def scheduler(self) -> MakeScheduler:
        if not self.drop_every:
            return super().scheduler()
        share = self.drop_every / self.epochs
        return lambda optimizer, count: StepLR(optimizer, max(1, round(share * count)))

    def test(self, members: Sequence[kasuri.Fitted], data: Dataset, seed: int) -> Scored:
        """As in every experiment, the batched calibration error, and what `kasuri.diagnose` finds."""
        evaluation: Any
        evaluation, figures = super().test(members, data, seed)
        metrics, rows = dict(evaluation), evaluation.examples
        if "accuracy" in rows:
            pairs = zip(rows["confidence"].split(BATCH), rows["accuracy"].split(BATCH), strict=True)
            errors = [kasuri.metrics.calibration_bins(*pair).error for pair in pairs]
            metrics["ece_batched"] = sum(errors) / len(errors)
        fitted = members[0]
        weights = sum(q.numel() for _, q in kasuri.named_posteriors(fitted.net))
        per_example = weights / len(data.train)
        metrics["eta"] = self.tau / per_example
        valid = data.valid.subset(DIAGNOSED)
        draws = min(self.samples, 16)
        diagnosis = kasuri.diagnose(fitted, valid, data.train, samples=draws, seed=seed).as_dict()
        sweep = point("tau", self.tau, self.series, self.curves, {"η = 1": per_example})
        return metrics, figures | {"sweep": sweep, "diagnosis": diagnosis}


def at_each_tau(
    base: Tempered, taus: Sequence[float], published: Mapping[str, Published] | None = None
) -> list[Tempered]:
    """The same at several τ, beside published values by τ.

    Examples:
        >>> base = Tempered(name="e", variant="", title="")
        >>> [row.variant for row in at_each_tau(base, (0.001, 10.0))]
        ['tau-0.001', 'tau-10']
    """
    values = {f"tau-{tau}": value for tau, value in (published or {}).items()}
    return table(base, {f"tau-{tau:g}": {"tau": tau} for tau in taus}, values)


_START: dict[str, Any] = {"scale": 1e-4, "noise": 0.01}  # initial standard deviations of the slides
_FAMILIES: Mapping[str, kasuri.Family] = {
    "mean-field": kasuri.MeanField(**_START),
    "k-tied-2": kasuri.KTied(rank=2, **_START),
    "matrix-normal": kasuri.MatrixNormal(**_START),
    "radial-row": kasuri.Radial(grouping="row"),
}


def _structured(base: Tempered, taus: Sequence[float]) -> list[Tempered]:
    """Every family at every τ."""
    rows = {
        f"{name}-tau-{tau:g}": {"family": family, "series": name, "tau": tau}
        for name, family in _FAMILIES.items()
        for tau in taus
    }
    return table(base, rows)


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
    family=_FAMILIES["mean-field"],
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
    family=_FAMILIES["mean-field"],
    estimator="shared",
    epochs=200,
    batch_size=128,
    learning_rate=0.01,
    drop_every=100,
    keep="last",
    prior_scale=0.2,
    augment=compose(flip, crop(4)),
)
_CONCRETE = Tempered(
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
_STRUCTURE = replace(
    _MNIST,
    name="tempering/structure-mnist",
    title="MNIST as in the slides, other posteriors: does structure move the best temperature?",
    estimator="auto",
    curves=("accuracy", "gibbs_nll", "nll", "ece", "ood_auroc_entropy"),
)
_SHORT: dict[str, Any] = {"limit": 10_000, "epochs": 20}
_PUBLISHED = {data: published.table("overparameterised", data) for data in ("mnist", "cifar10")}
_TAUS = tuple(map(float, _PUBLISHED["mnist"]))

EXPERIMENTS: list[Experiment] = [
    *_TOY,
    *_WIDTH,
    *at_each_tau(_MNIST, _TAUS, _PUBLISHED["mnist"]),
    *at_each_tau(_CIFAR, _TAUS, _PUBLISHED["cifar10"]),
    *at_each_tau(
        replace(
            _CIFAR,
            name="tempering/cifar10-short",
            title="CIFAR-10, ResNet-8 of width 8-16-32 on 10,000 images, 20 epochs: η = τ p / N",
            network=CifarResNet(1, (8, 16, 32)),
            drop_every=0,
            samples=10,
            **_SHORT,
        ),
        (0.001, 0.01, 0.1, 1.0, 5.0, 10.0, 100.0),
        _PUBLISHED["cifar10"],
    ),
    *_structured(_STRUCTURE, (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)),
    *form(_structured(_STRUCTURE, (0.001, 0.01, 0.1, 1.0)), "short", samples=30, **_SHORT),
    *_structured(_CONCRETE, (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)),
]
