"""Smaller networks out of posteriors: what is left, what it costs, and the frontier of size and error."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn
from tyro.conf import Fixed

import kasuri
from experiments.data import Dataset
from experiments.matrix_normal import VALIDATED, Sparse
from experiments.spec import Where
from experiments.supervised import Callbacks, Scored, Supervised
from kasuri.compression import Loss, PerLayer
from kasuri.compression.counting import count
from kasuri.compression.report import CompressionReport, latency
from kasuri.streams import mix

SIZES = {"weights": "weights", "macs": "flops"}  # of a point of the frontier, by price


@dataclass(frozen=True, kw_only=True)
class Compressed(Sparse):
    """A posterior under a sparsifying prior, then a plain network with fewer units, not trained any further.

    Units go by `kasuri.compress` at several tolerances of the validation loss. Of the networks that
    result, the one with the fewest weights (operations, by price) whose validation error is within
    `error`, or `slack` of the lowest one, is reported. The test data choose nothing.
    """

    criterion: str = "group_ard"  # of `kasuri.compress`
    # how often units are taken out while training goes on, at equal distances from the end of the KL's rise
    # to the last part; 0 for never
    stages: int = 0
    stage_tolerance: float = 0.01  # growth of the validation loss that each stage may cost
    price: Literal["weights", "macs"] = "weights"  # what units should save, of `kasuri.compress`
    structure: str = "both"  # what may go, of `kasuri.compress`
    # so many weights (or multiply-accumulates, by price) may be left after the last stage, and after each
    # before it a common factor more; 0 for no bound
    budget: int = 0
    last: float = 0.25  # share of the last part, in which the rate falls and no unit goes
    last_temperature: float = 0.0  # of the last part; 0 for that of the others
    # growth of the validation loss, nats per example, at which to compress
    tolerances: Fixed[tuple[float, ...]] = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05)
    error: float = 0.01  # share of wrong validation answers that is allowed
    slack: float = 0.0  # how much more than the lowest share is allowed as well
    # published networks by name: "weights", "flops" and "error"
    rivals: Fixed[Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    # local and layer scales of a `kasuri.RadialPrior`, which replaces the other priors
    radial: Fixed[tuple[float, float] | None] = None
    # mean directions of that prior. "posterior", as published: directions are free, and what is not radial
    # has a standard normal prior; "uniform": what is not radial has that of `relevance`
    directions: str = "posterior"

    def __post_init__(self) -> None:
        before = self.hold + self.ramp
        if self.stages and not 0 < self.last < 1 - before:
            raise ValueError(
                f"last={self.last} must be above 0 and below {1 - before:g}, since the KL's weight is 0 "
                f"or rising in the first {before:g} of the epochs"
            )

    def smoke(self) -> "Compressed":
        """Two epochs on 200 examples, two tolerances."""
        small: Any = super().smoke()
        return dataclasses.replace(
            small, tolerances=self.tolerances[-2:], stages=min(self.stages, 1)
        )

    def prior(self) -> kasuri.Prior:
        """Radial, or as in every experiment on sparsity."""
        if self.radial is None:
            return super().prior()
        others = kasuri.Normal(1.0) if self.directions == "posterior" else super().prior()
        return kasuri.RadialPrior(*self.radial, mean=self.directions, others=others)

    def fit(
        self, net: nn.Module, data: Dataset, seed: int, where: Where, callbacks: Callbacks = ()
    ) -> kasuri.Fitted:
        """As in every experiment; with stages smaller and smaller networks, one after the other."""
        if not self.stages:
            return super().fit(net, data, seed, where, callbacks)
        history: list[dict[str, float]] = []
        seconds, check = 0.0, data.valid.subset(VALIDATED)
        for number, part in enumerate(self.parts()):
            below = where.below(f"stage-{number}")
            fitted = part.fit(net, data, mix(seed, number), below, callbacks)
            done = history[-1] if history else {"epoch": 0, "step": 0}
            history += [
                row | {key: row[key] + done[key] for key in ("epoch", "step")}
                for row in fitted.history
            ]
            seconds += fitted.seconds
            if number < self.stages:
                net, _ = kasuri.compress(
                    fitted.objective,
                    data.train.x[:64],
                    criterion=self.criterion,
                    threshold=PerLayer(
                        self.stage_tolerance, self.price, self.allowed(data, number)
                    ),
                    structure=self.structure,
                    validation=(check.x, check.y),
                    keep_posterior=True,
                )
        return dataclasses.replace(fitted, history=history, seconds=seconds)

    def parts(self) -> list["Compressed"]:
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

    def test(self, members: Sequence[kasuri.Fitted], data: Dataset, seed: int) -> Scored:
        """Scores of the posterior, of the chosen small network, and the frontier."""
        metrics, figures = Supervised.test(self, members, data, seed)
        example, first = data.test.x[:64], self.network(data)
        points: list[dict[str, Any]] = []
        for tolerance in self.tolerances:
            small, report = kasuri.compress(
                members[0].objective,
                example,
                criterion=self.criterion,
                structure=self.structure,
                threshold=PerLayer(tolerance, self.price) if self.stages else Loss(tolerance),
                validation=(data.valid.x, data.valid.y),
            )
            # compared with the first network of the experiment, whatever stages were between
            before, after = latency(first.eval(), small, example)
            point = scored(small, report, data) | {"speedup": before / after}
            points.append({"tolerance": tolerance} | point)
        best = chosen(points, self.error, self.slack, SIZES[self.price])
        left = {f"{size}_left": float(points[best][size]) for size in SIZES.values()}
        left |= {key: float(points[best][key]) for key in ("error", "speedup", "valid_error")}
        frontier = {
            "points": points,
            "chosen": best,
            "published": self.rivals,
            "layers": weights_by_layer(first),
        }
        return metrics | left, figures | {"frontier": frontier}


def scored(small: nn.Module, report: CompressionReport, data: Dataset) -> dict[str, Any]:
    """Sizes and scores of a small network: a point of the frontier.

    Weights and operations are counted as published tables count them, without columns of zeros (inputs
    that a layer does not look at).
    """
    judge = kasuri.MaximumLikelihood(small, kasuri.Categorical())
    valid, test = kasuri.evaluate(judge, data.valid), kasuri.evaluate(judge, data.test)
    return {
        "weights": report.after.nonzero,
        "flops": report.after.table_flops,
        "left": widths(small),
        "layers": weights_by_layer(small),
        "error": 1 - test["accuracy"],
        "valid_error": 1 - valid["accuracy"],
        "nll": test["nll"],
    }


def weights_by_layer(net: nn.Module) -> list[int]:
    """Weights other than 0 of every convolution and dense layer."""
    return [int(layer.weight.count_nonzero()) for layer in _layers(net)]


def widths(net: nn.Module) -> str:
    """Units that are left, layer after layer, as tables write them: 4-7-110-66 for a LeNet-5.

    Where a layer reads a number of inputs that the layer before it does not have, that number stands between;
    inputs of images and outputs of the network are left out.

    Examples:
        >>> widths(nn.Sequential(nn.Conv2d(1, 4, 5), nn.Flatten(), nn.Linear(64, 6), nn.Linear(6, 10)))
        '4-64-6'
    """
    sizes: list[int] = []
    for layer in _layers(net):
        read = int((layer.weight.detach() != 0).transpose(0, 1).flatten(1).any(1).sum())
        if (sizes and sizes[-1] != read) or (not sizes and isinstance(layer, nn.Linear)):
            sizes.append(read)
        sizes.append(len(layer.weight))
    return "-".join(map(str, sizes[:-1]))


def _layers(net: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    return [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]


def chosen(
    points: Sequence[dict[str, Any]], error: float, slack: float = 0.0, size: str = "weights"
) -> int:
    """The smallest point whose validation error is within a bound, or within `slack` of the lowest.

    Examples:
        >>> points = [{"weights": 9, "valid_error": 0.005}, {"weights": 5, "valid_error": 1 - 0.99},
        ...           {"weights": 2, "valid_error": 0.05}]
        >>> chosen(points, 0.01), chosen(points, 0.001), chosen(points, 0.001, slack=0.005)
        (1, 0, 1)
    """
    bound = max(error, min(point["valid_error"] for point in points) + slack)
    # a share of wrong answers is a number that rounding may have moved
    within = [i for i, point in enumerate(points) if point["valid_error"] <= bound + 1e-6]
    return min(within, key=lambda i: points[i][size])
