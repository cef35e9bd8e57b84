"""Smaller networks out of posteriors: what is left, what it costs, and the frontier of size and error."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from experiments.data.dataset import Dataset
from experiments.layers_left import chosen, weights_by_layer, widths
from experiments.sparse import VALIDATED, Sparse
from experiments.spec import FIXED, Where
from experiments.supervised import Supervised
from kasuri.compression.compress import compress
from kasuri.compression.counting import count
from kasuri.compression.report import CompressionReport, latency
from kasuri.compression.search import Loss, LossOf, PerLayer, validation_loss
from kasuri.likelihoods import Categorical
from kasuri.objectives.elbo import MaximumLikelihood
from kasuri.posteriors.radial.prior import RadialPrior
from kasuri.prediction.evaluate import evaluate
from kasuri.priors.base import Prior
from kasuri.priors.normal import Normal
from kasuri.streams import mix
from kasuri.training.callbacks import Callback
from kasuri.training.fitted import Fitted

SIZES = {"weights": "weights", "macs": "flops"}  # of a point of the frontier, by price


@dataclass(frozen=True, kw_only=True)
class Compressed(Sparse):
    """A posterior under a sparsifying prior, then a plain network with fewer units, not trained any further.

    Units go by `kasuri.compress` at several tolerances of the validation loss. Of the networks that
    result, the one with the fewest weights (operations, by price) whose validation error is within
    `error`, or `slack` of the lowest one, is reported. The test data choose nothing.

    Args:
        criterion: of `kasuri.compress`.
        tolerances: growth of the validation loss, nats per example, at which to compress.
        error: share of wrong validation answers that is allowed.
        slack: how much more than the lowest share is allowed as well.
        rivals: published networks by name: "weights", "flops" and "error".
        stages: how often units are taken out while training goes on, at equal distances from the end of
            the KL's rise to the last part; 0 for never.
        last: share of the epochs of the last part, in which the rate falls and no unit goes; with stages.
        last_temperature: of the last part; 0 for that of the others.
        stage_tolerance: growth of the validation loss that each stage may cost.
        price: what units should save, of `kasuri.compress`.
        structure: what may go, of `kasuri.compress`.
        budget: so many weights (or multiply-accumulates, by price) may be left after the last stage, and
            after each before it a common factor more; 0 for no bound.
        refit: whether the last part of the training, after the last stage, learns from the validation data as
            well. Nothing is left to choose then: the network after it is reported, without units at 0.
        radial: local and layer scales of a `kasuri.RadialPrior`, which replaces the other priors; None for
            those of `relevance`.
        directions: mean directions of that prior. "posterior", as published: directions are free, and what
            is not radial has a standard normal prior; "uniform": what is not radial has that of `relevance`.
    """

    criterion: str = "group_ard"
    stages: int = 0
    stage_tolerance: float = 0.01
    price: str = "weights"
    structure: str = "both"
    budget: int = 0
    refit: bool = False
    last: float = 0.25
    last_temperature: float = 0.0
    tolerances: tuple[float, ...] = field(
        default=(0.0, 0.002, 0.005, 0.01, 0.02, 0.05), metadata=FIXED
    )
    error: float = 0.01
    slack: float = 0.0
    rivals: Mapping[str, Mapping[str, float]] = field(default_factory=dict, metadata=FIXED)
    radial: tuple[float, float] | None = field(default=None, metadata=FIXED)
    directions: str = "posterior"

    def __post_init__(self) -> None:
        """Refuse parts that are longer than the whole."""
        before = self.hold + self.ramp
        if self.stages and not 0 < self.last < 1 - before:
            raise ValueError(
                f"last={self.last}: the share of the epochs after the last stage, above 0 and below "
                f"{1 - before:g}, since the KL's weight is 0 or rising in the first {before:g}"
            )

    def smoke(self) -> "Compressed":
        """Two epochs on 200 examples, two tolerances."""
        small = super().smoke()
        assert isinstance(small, Compressed)
        return dataclasses.replace(
            small, tolerances=self.tolerances[-2:], stages=min(self.stages, 1)
        )

    def prior(self) -> Prior:
        """Radial, or as in every experiment on sparsity."""
        if self.radial is None:
            return super().prior()
        others = Normal(1.0) if self.directions == "posterior" else super().prior()
        return RadialPrior(*self.radial, mean=self.directions, others=others)

    def fit(
        self,
        net: nn.Module,
        data: Dataset,
        seed: int,
        folder: Path | None,
        where: Where,
        callbacks: Sequence[Callback] = (),
    ) -> Fitted:
        """As in every experiment; with stages smaller and smaller networks, one after the other."""
        if not self.stages:
            return super().fit(net, data, seed, folder, where, callbacks)
        history: list[dict[str, float]] = []
        seconds = 0.0
        for number, stage in enumerate(self.staged()):
            at = None if folder is None else folder / f"stage-{number}"
            part = data.everything() if self.refit and number == self.stages else data
            fitted = stage.fit(net, part, mix(seed, number), at, where, callbacks)
            done = history[-1] if history else {"epoch": 0, "step": 0}
            history += [
                row | {key: row[key] + done[key] for key in ("epoch", "step")}
                for row in fitted.history
            ]
            seconds += fitted.seconds
            if number < self.stages:
                net = self.smaller(fitted, data, self.allowed(data, number))
        return dataclasses.replace(fitted, history=history, seconds=seconds)

    def staged(self) -> list["Compressed"]:
        """Parts of the training: the KL's rise, equal parts at a constant rate, and the rate's fall."""
        first = self.hold + self.ramp
        between = self.stages - 1
        shares = [1 - self.last, self.last]
        if between:
            shares = [first, *[(1 - first - self.last) / between] * between, self.last]
        parts = [
            dataclasses.replace(
                self,
                stages=0,
                epochs=max(1, round(share * self.epochs)),
                falling=number == self.stages and self.falling,
                hold=0.0 if number else self.hold / share,
                ramp=0.0 if number else self.ramp / share,
            )
            for number, share in enumerate(shares)
        ]
        if self.last_temperature:
            parts[-1] = dataclasses.replace(parts[-1], temperature=self.last_temperature)
        return parts

    def allowed(self, data: Dataset, number: int) -> int | None:
        """What may be left after the stage of this number; None for any number."""
        if not self.budget:
            return None
        first = count(self.network(data), data.train.x[:1])
        whole = first.weights if self.price == "weights" else first.macs
        return round(whole * (self.budget / whole) ** ((number + 1) / self.stages))

    def smaller(self, fitted: Fitted, data: Dataset, budget: int | None = None) -> nn.Module:
        """The same posterior without what validation data can do without, or what is beyond a budget."""
        check = data.valid.subset(min(len(data.valid), VALIDATED))
        net, _ = compress(
            fitted.objective,
            data.train.x[:64],
            criterion=self.criterion,
            threshold=PerLayer(self.stage_tolerance, self.price, budget),
            structure=self.structure,
            validation=(check.x, check.y),
            keep_posterior=True,
            calls=0,
        )
        return net

    def tested(
        self, fits: Sequence[Fitted], data: Dataset, seed: int
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """Scores of the posterior, of the chosen small network, and the frontier."""
        metrics, figures = Supervised.tested(self, fits, data, seed)
        objective = fits[0].objective
        points, reports = [], []
        validation = remembered(validation_loss((data.valid.x, data.valid.y), objective))
        for tolerance in (0.0,) if self.refit else self.tolerances:
            threshold: Any = PerLayer(tolerance, self.price) if self.stages else Loss(tolerance)
            if self.refit:  # validation data were trained on, and say nothing any more
                threshold = 0.0
            small, report = compress(
                objective,
                data.test.x[:64],
                criterion=self.criterion,
                structure=self.structure,
                threshold=threshold,
                validation=None if self.refit else validation,
                calls=0,
            )
            report = since(report, self.network(data), small, data.test.x[:64])
            points.append({"tolerance": tolerance} | scored(small, report, data))
            reports.append(report)
            if self.refit:
                del points[-1]["valid_error"]  # of data that were trained on
        best = 0 if self.refit else chosen(points, self.error, self.slack, SIZES[self.price])
        left = {f"{key}_left": float(points[best][key]) for key in ("weights", "flops")}
        told_of = {"error", "valid_error", "speedup"} & points[best].keys()
        left |= {key: float(points[best][key]) for key in sorted(told_of)}
        left |= {"nll_small": float(points[best]["nll"])}
        layers = weights_by_layer(self.network(data))
        frontier = {"points": points, "chosen": best, "published": self.rivals, "layers": layers}
        told = {"compression": reports[best].as_dict(), "frontier": frontier}
        return metrics | left, figures | told


def remembered(loss: LossOf) -> LossOf:
    """The same function, which looks at networks with the same weights once: searches share many of them."""
    known: dict[bytes, float] = {}

    def looked_up(net: nn.Module) -> float:
        digest = hashlib.sha256()
        for name, one in net.state_dict().items():
            digest.update(f"{name} {one.dtype} {tuple(one.shape)}".encode())
            digest.update(one.detach().cpu().contiguous().numpy().tobytes())
        key = digest.digest()
        if key not in known:
            known[key] = loss(net)
        return known[key]

    return looked_up


def since(
    report: CompressionReport, first: nn.Module, small: nn.Module, example: Tensor
) -> CompressionReport:
    """The report with the first network of the experiment before, whatever stages were between."""
    weights = [first.get_submodule(one.layer).get_parameter("weight") for one in report.units]
    units = (
        dataclasses.replace(one, before=len(weight))
        for one, weight in zip(report.units, weights, strict=True)
    )
    return dataclasses.replace(
        report,
        before=count(first, example),
        units=tuple(units),
        latency=latency(first, small, example),
    )


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
        "left": widths(small),
        "layers": weights_by_layer(small),
        "error": 1 - test["accuracy"],
        "valid_error": 1 - valid["accuracy"],
        "nll": test["nll"],
        "speedup": report.latency.ratio if report.latency is not None else 1.0,
    }
