"""Relevance priors: how much of a network is left, and what the rest is worth."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from experiments.data.dataset import Dataset, Split
from experiments.spec import FIXED
from experiments.supervised import Supervised
from kasuri.compression.compress import compress
from kasuri.compression.report import CompressionReport
from kasuri.objectives.schedules import Exponential, HoldThenRamp
from kasuri.prediction.evaluate import evaluate
from kasuri.priors.base import Prior
from kasuri.priors.normal import Normal
from kasuri.priors.relevance import ARD, GroupARD
from kasuri.streams import mix
from kasuri.training.fitted import Fitted

VALIDATED = 2000  # validation examples that a threshold is chosen on
Relevance = Literal["constant", "weights", "rows", "columns", "both"]


@dataclass(frozen=True, kw_only=True)
class Sparse(Supervised):
    """A Bayesian network under a prior that finds out what is needed, then pruned.

    Args:
        relevance: whose precisions the prior fits: one "constant" for all weights, those of single
            "weights" (ARD), of "rows" (outputs), of "columns" (inputs), or the products of "both".
        hold: share of the epochs in which the KL counts nothing.
        ramp: share of the epochs in which its weight then rises to 1; 0 for all of it from the start.
        rise: in a straight line, or by a constant factor per step from 0.01 on ("exponential").
        thresholds: signal-to-noise ratios mean²/variance, falling. What is below the first of them at
            which the validation loss grows by no more than `tolerance` is dropped.
        tolerance: nats per example.
    """

    relevance: Relevance = "weights"
    hold: float = 0.025
    ramp: float = 0.075
    rise: Literal["linear", "exponential"] = "linear"
    thresholds: tuple[float, ...] = field(
        default=(1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.003, 0.001, 0.0), metadata=FIXED
    )
    tolerance: float = 0.02

    def prior(self) -> Prior:
        """One that follows the posterior."""
        if self.relevance == "constant":
            return Normal(0.1, learn="closed form")
        if self.relevance == "weights":
            return ARD()
        return GroupARD(groups=self.relevance)

    def tempered(self, data: Dataset) -> dict[str, Any]:
        """As in every experiment; the KL is off at first."""
        batches = -(-len(data.train) // self.batch_size)
        weight: Any = 1.0
        hold, ramp = self.hold * self.epochs, self.ramp * self.epochs
        if self.ramp and self.rise == "linear":
            weight = HoldThenRamp(hold, ramp, batches)
        elif self.ramp:
            weight = Exponential(ramp, batches, start=0.01, hold=hold)
        return {**super().tempered(data), "kl_weight": weight}

    def tested(
        self, fits: Sequence[Fitted], data: Dataset, seed: int
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """As in every experiment, and once more without what is irrelevant."""
        metrics, figures = super().tested(fits, data, seed)
        elbo = fits[0].objective
        several = {"constant": ["weights"], "both": ["weights", "rows", "columns"]}
        structure = several.get(self.relevance, [self.relevance])
        criterion = "snr" if self.relevance in ("constant", "weights") else "group_ard"
        check = Split(data.valid.x[:VALIDATED], data.valid.y[:VALIDATED])

        def scores(model: Any, part: Split) -> dict[str, float]:
            return evaluate(
                model, part, samples=self.samples, seed=mix(seed, 7), likelihood=elbo.likelihood
            )

        limit = scores(elbo.net, check)["nll"] + self.tolerance
        for threshold in self.thresholds:
            net, report = compress(
                elbo, criterion=criterion, structure=structure, threshold=threshold
            )
            if scores(net, check)["nll"] <= limit:
                break
        pruned = scores(net, data.test)
        total = report.total
        left = {
            "threshold": threshold,
            "weights_left": float(total.weights_left),
            "rows_left": float(total.rows_left),
            "columns_left": float(total.columns_left),
            "accuracy_pruned": pruned["accuracy"],
            "nll_pruned": pruned["nll"],
        }
        return metrics | left, figures | {"sparsity": sparsity(report, threshold)}


def sparsity(report: CompressionReport, threshold: float) -> dict[str, Any]:
    """What is left of every weight matrix and of all together, for a result file."""
    *layers, total = (
        dataclasses.asdict(matrix) | {"dropped": matrix.dropped, "shape": list(matrix.shape)}
        for matrix in (*report.matrices, report.total)
    )
    return {"threshold": threshold, "layers": layers, "total": total}
