"""Smaller networks out of posteriors: what is left, what it costs, and the frontier of size and error."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from weft.compression.compress import compress
from weft.compression.report import CompressionReport
from weft.data.dataset import Dataset
from weft.evaluation import evaluate
from weft.experiments.sparse import Sparse
from weft.experiments.spec import FIXED
from weft.experiments.supervised import Supervised
from weft.likelihoods import Categorical
from weft.objectives import MaximumLikelihood
from weft.priors import Normal, Prior
from weft.radial_prior import RadialPrior
from weft.training.fitted import Fitted


@dataclass(frozen=True, kw_only=True)
class Compressed(Sparse):
    """A posterior under a sparsifying prior, then a plain network with fewer units, without retraining.

    Units go by `weft.compress` at several tolerances of the validation loss. Of the networks that
    result, the one with the fewest weights whose validation error is within `error` is reported; if none is,
    the one with the lowest validation error. The test data choose nothing.

    Args:
        criterion: of `weft.compress`.
        tolerances: growth of the validation loss, nats per example, at which to compress.
        error: share of wrong validation answers that is allowed.
        rivals: published networks by name: "weights", "flops" and "error".
        radial: local and layer scales of a `weft.RadialPrior`, which replaces the other priors; None for
            those of `relevance`.
    """

    criterion: str = "group_ard"
    tolerances: tuple[float, ...] = field(
        default=(0.0, 0.002, 0.005, 0.01, 0.02, 0.05), metadata=FIXED
    )
    error: float = 0.01
    rivals: Mapping[str, Mapping[str, float]] = field(default_factory=dict, metadata=FIXED)
    radial: tuple[float, float] | None = field(default=None, metadata=FIXED)

    def smoke(self) -> "Compressed":
        """Two epochs on 200 examples, two tolerances."""
        small = super().smoke()
        assert isinstance(small, Compressed)
        return dataclasses.replace(small, tolerances=self.tolerances[-2:])

    def prior(self) -> Prior:
        """Radial, or as in every experiment on sparsity."""
        if self.radial is None:
            return super().prior()
        return RadialPrior(*self.radial, others=Normal(1.0))

    def tested(
        self, fits: Sequence[Fitted], data: Dataset, seed: int
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """Scores of the posterior, of the chosen small network, and the frontier."""
        metrics, figures = Supervised.tested(self, fits, data, seed)
        objective = fits[0].objective
        points, reports = [], []
        for tolerance in self.tolerances:
            small, report = compress(
                objective,
                data.test.x[:64],
                criterion=self.criterion,
                threshold="loss",
                validation=(data.valid.x, data.valid.y),
                tolerance=tolerance,
                calls=20,
            )
            points.append({"tolerance": tolerance} | scored(small, report, data))
            reports.append(report)
        best = chosen(points, self.error)
        left = {f"{key}_left": float(points[best][key]) for key in ("weights", "flops")}
        left |= {key: float(points[best][key]) for key in ("error", "valid_error", "speedup")}
        left |= {"nll_small": float(points[best]["nll"])}
        frontier = {"points": points, "published": self.rivals}
        told = {"compression": reports[best].as_dict(), "frontier": frontier}
        return metrics | left, figures | told


def scored(small: nn.Module, report: CompressionReport, data: Dataset) -> dict[str, Any]:
    """Sizes and scores of a small network: a point of the frontier.

    Weights and operations are counted as published tables count them, without columns of zeros (inputs
    that a layer does not look at); "dense_weights" has these as well.
    """
    judge = MaximumLikelihood(small, Categorical())
    valid, test = evaluate(judge, data.valid), evaluate(judge, data.test)
    return {
        "weights": report.after.nonzero,
        "dense_weights": report.after.weights,
        "parameters": report.after.parameters,
        "flops": report.after.table_flops,
        "units": {one.layer: one.after for one in report.units},
        "error": 1 - test["accuracy"],
        "valid_error": 1 - valid["accuracy"],
        "nll": test["nll"],
        "speedup": report.latency.ratio if report.latency is not None else 1.0,
    }


def chosen(points: Sequence[dict[str, Any]], error: float) -> int:
    """The point with the fewest weights within an error, on validation data; else the most accurate.

    Examples:
        >>> points = [{"weights": 9, "valid_error": 0.005}, {"weights": 5, "valid_error": 0.008},
        ...           {"weights": 2, "valid_error": 0.05}]
        >>> chosen(points, 0.01), chosen(points, 0.001)
        (1, 0)
    """
    places = range(len(points))
    within = [i for i in places if points[i]["valid_error"] <= error]
    if within:
        return min(within, key=lambda i: points[i]["weights"])
    return min(places, key=lambda i: points[i]["valid_error"])
