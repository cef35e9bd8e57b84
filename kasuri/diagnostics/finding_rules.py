"""The rules of `kasuri.diagnose`: from numbers to findings, as pure functions.

Thresholds were set on networks that are well and on networks that were broken on purpose, one for each rule
(tests/diagnostics/test_findings.py): they lie between the two by a wide margin.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kasuri.diagnostics.collapse import Collapse, LayerState
from kasuri.diagnostics.reference.pareto import GOOD
from kasuri.objectives.elbo import ELBO
from kasuri.objectives.temperature import starting_point

AT_PRIOR = 0.5  # share of a layer; networks that are well have up to 0.1
OUTSIDE = 0.5  # share of weights wider than the prior
POINTS = 0.95  # share of weights narrow as points
CONSTANT = 0.9  # of the NLL of a constant prediction: hardly better than that
GAP = 0.05  # between stated and observed probability, if chance does not explain it
ERRORS = 3.0  # standard errors that are chance
SIGNAL = 2.0  # median signal-to-noise ratio of a gradient; noise alone has 0.03 over 20 batches
ALIVE = 0.05  # share of a layer's weights that data must reach


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, and what to try.

    Args:
        kind: a word for programs.
        what: is wrong, in words.
        advice: what to try.
    """

    kind: str
    what: str
    advice: str

    def __str__(self) -> str:
        """One sentence."""
        return f"{self.what}: {self.advice}."


@dataclass(frozen=True)
class Measured:
    """The numbers that the rules look at.

    Args:
        collapse: posterior against prior.
        scores: of `kasuri.evaluate` on data that training did not see.
        constant_nll: NLL there of the best constant prediction.
        temperature: η, KL weight included.
        num_data: training examples.
        gradients: rows of `GradientSNR`; none if they were not looked at.
        k_hat: of importance weights; None if it was not looked at.
    """

    collapse: Collapse
    scores: Mapping[str, float]
    constant_nll: float | None
    temperature: float
    num_data: int
    gradients: Sequence[Mapping[str, Any]] = ()
    k_hat: float | None = None

    @property
    def colder(self) -> float:
        """A lower temperature: 0.4 · data / weights, or a tenth of the present one if it is there already."""
        balanced = starting_point(
            self.num_data, sum(layer.weights for layer in self.collapse.layers)
        )
        return balanced if balanced < 0.5 * self.temperature else self.temperature / 10


def all_findings(found: Measured) -> tuple[Finding, ...]:
    """Everything that the rules find, worst first."""
    rules = (_ignores, _at_prior, _widths, _calibration, _gradients, _proposal)
    return tuple(finding for rule in rules for finding in rule(found))


def not_finite(elbo: ELBO) -> tuple[Finding, ...]:
    """Parameters that are not numbers, after which nothing else can be said."""
    found = []
    for name, parameter in elbo.named_parameters():
        count = int((~parameter.isfinite()).sum())
        if count:
            where = name.removeprefix("bnn.").replace("posteriors.", "")
            found.append(
                Finding(
                    "not finite",
                    f"{where} holds {count} values that are not finite",
                    "take an earlier checkpoint, and train with a lower learning rate or clip=1.0",
                )
            )
    return tuple(found)


def constant_nll(targets: Tensor, classes: bool) -> float | None:
    """NLL per example of the best prediction that does not look at the input.

    Examples:
        >>> round(constant_nll(torch.tensor([0, 1, 0, 1]), classes=True), 4)
        0.6931
    """
    columns = targets.reshape(len(targets), -1).double().cpu()
    if not len(columns):
        return None
    if not classes:
        variance = columns.var(0, correction=0)
        return float(0.5 * (2 * math.pi * math.e * variance).log().sum())
    total = 0.0
    for column in columns.T:
        shares = torch.unique(column, return_counts=True)[1].double() / len(column)
        total -= float((shares * shares.log()).sum())
    return total


def _ignores(found: Measured) -> Iterator[Finding]:
    nll, constant, collapse = found.scores["nll"], found.constant_nll, found.collapse
    if constant is None:
        return
    # for classes by the ratio, for densities, which have no zero, by less than 0.05 nats
    limit = CONSTANT * constant if "accuracy" in found.scores else constant - 0.05
    if nll <= limit:
        return
    what = f"predictions are hardly better than a constant (NLL {nll:.3g}, constant {constant:.3g})"
    if collapse.kl_share is not None:
        what += f" and the KL is {_percent(collapse.kl_share)} of the loss"
    if collapse.predictive_ratio is not None and 0.5 < collapse.predictive_ratio < 2:
        what += "; they vary as those of the prior do"
    advice = (
        f"lower the temperature to about {found.colder:.2g}"
        if any(_is_at_prior(layer) for layer in collapse.layers)
        else "train longer or with a higher learning rate, and check that inputs are scaled and belong "
        "to their targets"
    )
    yield Finding("ignores the data", what, advice)


def _is_at_prior(layer: LayerState) -> bool:
    return layer.is_matrix and (layer.at_prior or 0) > AT_PRIOR


def _at_prior(found: Measured) -> Iterator[Finding]:
    for layer in filter(_is_at_prior, found.collapse.layers):
        yield Finding(
            "at the prior",
            f"{_percent(layer.at_prior)} of {layer.name} equals the prior",
            f"lower the temperature to about {found.colder:.2g} or narrow the layer",
        )


def _widths(found: Measured) -> Iterator[Finding]:
    for layer in found.collapse.layers:
        if (layer.wide or 0) > OUTSIDE:
            yield Finding(
                "wide",
                f"{_percent(layer.wide)} of {layer.name} is wider than the prior",
                "lower the learning rate, train longer, or start with a smaller scale= of the family",
            )
        if layer.is_matrix and (layer.narrow or 0) > POINTS:
            yield Finding(
                "narrow",
                f"{_percent(layer.narrow)} of {layer.name} has almost no spread (below a hundredth of the "
                "prior's): it is a point estimate",
                "raise the temperature, or start with a larger scale= of the family",
            )


def _calibration(found: Measured) -> Iterator[Finding]:
    """Stated against observed probability: confidence and accuracy, or 90 % intervals and their coverage."""
    scores, noise = found.scores, ""
    if "accuracy" in scores:
        stated, seen = scores["confidence"], scores["accuracy"]
        error = scores.get("accuracy_sem", math.inf)
        numbers = f"confidence {_percent(stated)}, accuracy {_percent(seen)}"
    elif "coverage_90" in scores:
        stated, seen = 0.9, scores["coverage_90"]
        error = math.sqrt(0.9 * 0.1 / scores["count"])
        numbers = f"intervals of 90 % hold {_percent(seen)} of the targets"
        noise = ", or let the noise be learned: kasuri.Gaussian()"
    else:
        return
    if abs(stated - seen) <= max(GAP, ERRORS * error):
        return
    if stated > seen:
        yield Finding(
            "overconfident", f"too sure of itself ({numbers})", f"{_warmer(found)}{noise}"
        )
    else:
        yield Finding(
            "timid",
            f"not sure enough of itself ({numbers})",
            f"lower the temperature to about {found.colder:.2g}{noise}",
        )


def _warmer(found: Measured) -> str:
    if found.temperature < 0.5:
        higher = min(1.0, 3 * found.temperature)
        return f"raise the temperature to about {higher:.2g}, or average several networks"
    return "average several networks (kasuri.ensemble), or stop earlier on validation data"


def _gradients(found: Measured) -> Iterator[Finding]:
    sizes = {layer.name: layer.weights for layer in found.collapse.layers}
    reached = [row for row in found.gradients if row["elements"] >= ALIVE * sizes[row["layer"]]]
    for row in found.gradients:
        if row["parameter"] == "loc" and row not in reached:
            yield Finding(
                "dead",
                f"the data do not reach {row['layer']}: its gradient is that of the KL alone",
                "look for units that are always off (lower the learning rate, start anew), inputs that "
                "are all 0, or a layer that is not used",
            )
    moving = [row for row in reached if (row["median"] or 0.0) > SIGNAL and row["elements"] > 1]
    if moving:
        top = max(moving, key=lambda row: float(row["median"]))
        part = "means" if top["parameter"] == "loc" else "standard deviations"
        yield Finding(
            "unfinished",
            f"the {part} of {top['layer']} are still on their way: gradients of different batches agree "
            f"(signal-to-noise ratio {top['median']:.2g})",
            'train longer, with a higher learning rate, or keep="last"',
        )


def _proposal(found: Measured) -> Iterator[Finding]:
    """Of one random layer only: hidden units can change places, and no posterior of one mode covers that."""
    alone = sum(layer.is_matrix for layer in found.collapse.layers) == 1
    if alone and found.k_hat is not None and found.k_hat > GOOD:
        yield Finding(
            "far from the truth",
            f"the posterior is far from the true one (k-hat {found.k_hat:.2f}, {GOOD} is the limit)",
            "train longer, or take a family with correlations: kasuri.FullNormal() or kasuri.MatrixNormal()",
        )


def _percent(share: float | None) -> str:
    return f"{100 * (share or 0.0):.0f} %"
