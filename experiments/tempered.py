"""A network at one temperature of a sweep, looked at with the metrics of the slides."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from experiments.data.dataset import Dataset
from experiments.figures import figures
from experiments.spec import FIXED
from experiments.supervised import Supervised
from kasuri.diagnostics.findings import diagnose
from kasuri.network.random import named_posteriors
from kasuri.objectives.balanced import Balanced
from kasuri.prediction.metrics import calibration_error
from kasuri.training.defaults import MakeScheduler
from kasuri.training.fitted import Fitted

DIAGNOSED = 2000  # validation rows
BATCH = 128  # over which the slides' code averages the calibration error


@dataclass(frozen=True, kw_only=True)
class Tempered(Supervised):
    """A Bayesian network at η = τ p / N, one point of a curve over τ.

    Beside the usual scores there is ece_batched, the calibration error averaged over batches of 128. The KL
    counts in full from the first batch on.

    Args:
        tau: τ; N is the number of random weights.
        drop_every: epochs after which the learning rate falls to a tenth, again and again; 0 for never.
        series: name of the curve that this is a point of.
        curves: scores that the report draws over τ.
    """

    tau: float = 1.0
    drop_every: int = 0
    series: str = field(default="mean-field", metadata=FIXED)
    curves: tuple[str, ...] = field(
        default=("accuracy", "gibbs_nll", "ece_batched", "confidence"), metadata=FIXED
    )

    def tempered(self, data: Dataset) -> dict[str, Any]:
        """Prior, balanced temperature, the KL in full."""
        return {"prior": self.prior(), "temperature": Balanced(self.tau), "kl_weight": 1.0}

    def scheduler(self) -> MakeScheduler:
        """As everywhere, or in steps."""
        if not self.drop_every:
            return super().scheduler()
        share = self.drop_every / self.epochs

        def steps(optimizer: Optimizer, count: int) -> LRScheduler:
            every = max(1, round(share * count))
            return LambdaLR(optimizer, lambda step: 0.1 ** (step // every))

        return steps

    def tested(
        self, fits: Sequence[Fitted], data: Dataset, seed: int
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """As in every experiment, the batched calibration error, and what `kasuri.diagnose` finds."""
        found = self.assess(fits, data, "test", seed)
        metrics, rows = dict(found), found.examples
        if "accuracy" in rows:
            pair = rows["confidence"], rows["accuracy"]
            metrics["ece_batched"] = calibration_error(*pair, batch=BATCH)
        fitted = fits[0]
        weights = sum(q.numel() for _, q in named_posteriors(fitted.net))
        count = len(data.train)
        metrics["eta"] = self.tau * count / weights
        valid = data.valid.subset(min(len(data.valid), DIAGNOSED))
        looked = diagnose(
            fitted, valid, data.train, samples=min(self.samples, 16), seed=seed
        ).as_dict()
        sweep = point("tau", self.tau, self.series, self.curves, {"η = 1": weights / count})
        return metrics, figures(found, fitted.objective) | {"sweep": sweep, "diagnosis": looked}


def point(
    x: str, value: float, series: str, curves: Sequence[str], marks: dict[str, float]
) -> dict[str, Any]:
    """What the report needs to draw a run as a point of curves over `x`.

    Args:
        x: name of the quantity that varies.
        value: of it in this run.
        series: name of the curve.
        curves: scores drawn against it.
        marks: places on the axis to mark, by name.
    """
    return {"x": x, "value": value, "series": series, "curves": list(curves), "marks": marks}


def sweep(base: Tempered, taus: Sequence[float], **changes: Any) -> list[Tempered]:
    """The same at several τ, with a variant name for each.

    Args:
        base: whose variant is what the names begin with.
        taus: values of τ.
        changes: of other fields.

    Examples:
        >>> base = Tempered(name="e", variant="", title="")
        >>> [one.variant for one in sweep(base, (0.001, 10.0))]
        ['tau-0.001', 'tau-10']
    """
    base = dataclasses.replace(base, **changes)
    return [
        dataclasses.replace(base, variant=f"{base.variant}tau-{tau:g}", tau=tau) for tau in taus
    ]
