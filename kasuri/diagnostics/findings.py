"""`kasuri.diagnose`: what is wrong with a trained posterior, in plain words, and what to try.

Thresholds were set on networks that are well and on networks that were broken on purpose, one for each rule
(tests/diagnostics/test_findings.py): they lie between the two by a wide margin.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.diagnostics.collapse import Collapse, LayerState, collapse_check, elbo_of
from kasuri.diagnostics.gradients import GradientSNR
from kasuri.inputs import take
from kasuri.objectives.elbo import ELBO
from kasuri.objectives.schedules import END
from kasuri.objectives.temperature import usual
from kasuri.objectives.trained import Trained
from kasuri.prediction.evaluate import evaluate
from kasuri.streams import mix, seeded
from kasuri.training.batches import tensors

BATCHES, BATCH_SIZE = 20, 128  # of the gradients' signal-to-noise ratio
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
        return f"{self.what}: {self.advice}."


@dataclass(frozen=True)
class Diagnosis:
    """The findings, and the measurements behind them.

    Args:
        findings: what is wrong; empty if nothing is.
        collapse: the posterior against its prior.
        scores: of `kasuri.evaluate`.
        notes: what could not be looked at.
    """

    findings: tuple[Finding, ...]
    collapse: Collapse | None
    scores: dict[str, float]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Findings, notes and the state of every weight, ready for JSON."""
        everything = asdict(self)
        return {name: everything[name] for name in ("findings", "collapse", "notes")}

    def __str__(self) -> str:
        lines = [f"- {finding}" for finding in self.findings] or ["Nothing to report."]
        return "\n".join([*lines, *(f"({note})" for note in self.notes)])


def diagnose(
    model: nn.Module | Trained, data: Any, train: Any = None, *, samples: int = 32, seed: int = 0
) -> Diagnosis:
    """Look for what commonly goes wrong with a trained Bayesian network.

    It compares weights with the prior, scores with those of a constant prediction, stated with observed
    probabilities, and, with the training data, the gradients' signal with their noise. Print the result.

    Args:
        model: a kasuri.ELBO, or what `kasuri.fit` returned.
        data: examples that training did not see, (x, y) or anything with attributes x and y.
        train: the training data.
        samples: draws per look.
        seed: of the draws.

    Examples:
        >>> import kasuri
        >>> _ = torch.manual_seed(0)
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField(scale=50.0))
        >>> elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=40)
        >>> print(diagnose(elbo, (torch.randn(40, 3), torch.arange(40) % 2)).findings[1])
        100 % of weight is wider than the prior: lower the learning rate, train longer, or start with a
        smaller scale= of the family.
    """
    elbo = elbo_of(model)
    broken = tuple(_not_finite(elbo))
    if broken:
        return Diagnosis(broken, None, {}, ("nothing else can be said about such a network",))
    scores = evaluate(elbo, data, samples=samples, seed=seed)
    measured = Measured(
        collapse=collapse_check(elbo),
        scores=scores,
        constant_nll=constant_nll(tensors(data)[1], "accuracy" in scores),
        temperature=elbo.weight_at(END),
        num_data=elbo.num_data,
        gradients=() if train is None else _gradient_rows(elbo, train, seed),
    )
    notes = () if train is not None else ("gradients need the training data: give train=...",)
    return Diagnosis(all_findings(measured), measured.collapse, scores, notes)


def _gradient_rows(elbo: ELBO, train: Any, seed: int) -> list[dict[str, Any]]:
    """Signal-to-noise ratios of gradients at the present parameters, over random batches.

    Gradients that were there are lost; parameters and generators stay as they are.
    """
    x, y = tensors(train)
    size = min(BATCH_SIZE, len(y))
    recorder = GradientSNR([BATCHES], window=BATCHES)
    mode = elbo.training
    elbo.train()
    try:
        order = torch.Generator().manual_seed(mix(seed, 2))
        with seeded(mix(seed, 2)), torch.enable_grad():
            for number in range(BATCHES):
                rows = torch.randint(len(y), (size,), generator=order)
                elbo.zero_grad()
                elbo(take(x, rows), y[rows], step=END).loss.backward()
                recorder.record(elbo, number)
    finally:
        elbo.zero_grad()
        elbo.train(mode)
    return recorder.rows


def constant_nll(targets: Tensor, classes: bool) -> float:
    """NLL per example of the best prediction that does not look at the input."""
    columns = targets.reshape(len(targets), -1).double().cpu()
    if not classes:
        variance = columns.var(0, correction=0)
        return float(0.5 * (2 * math.pi * math.e * variance).log().sum())
    counts = [torch.unique(column, return_counts=True)[1] for column in columns.T]
    return sum(float(torch.distributions.Categorical(count.double()).entropy()) for count in counts)


@dataclass(frozen=True)
class Measured:
    """The numbers that the rules look at."""

    collapse: Collapse
    scores: Mapping[str, float]  # of `kasuri.evaluate` on data that training did not see
    constant_nll: float  # of the best constant prediction there
    temperature: float  # η, KL weight included
    num_data: int
    gradients: Sequence[Mapping[str, Any]] = ()  # rows of `GradientSNR`

    @property
    def colder(self) -> str:
        """A lower temperature: 0.4 · data / weights, or a tenth of the present one if it is there already."""
        weights = sum(layer.weights for layer in self.collapse.layers)
        balanced = usual(0.4, self.num_data, weights)
        lower = balanced if balanced < 0.5 * self.temperature else self.temperature / 10
        return f"lower the temperature to about {lower:.2g}"


def all_findings(measured: Measured) -> tuple[Finding, ...]:
    """Everything that the rules find, worst first."""
    rules = (_ignores, _at_prior, _widths, _calibration, _gradients)
    return tuple(finding for rule in rules for finding in rule(measured))


def _not_finite(elbo: ELBO) -> Iterator[Finding]:
    for name, parameter in elbo.named_parameters():
        count = int((~parameter.isfinite()).sum())
        if count:
            where = name.removeprefix("bnn.").replace("posteriors.", "")
            yield Finding(
                "not finite",
                f"{where} holds {count} values that are not finite",
                "take an earlier checkpoint, and train with a lower learning rate or "
                "callbacks=[kasuri.training.Clip(1.0)]",
            )


def _ignores(measured: Measured) -> Iterator[Finding]:
    scores, constant, collapse = measured.scores, measured.constant_nll, measured.collapse
    # for classes by the ratio, for densities, which have no zero, by less than 0.05 nats
    limit = CONSTANT * constant if "accuracy" in scores else constant - 0.05
    if scores["nll"] <= limit:
        return
    cost = measured.temperature * collapse.kl / measured.num_data
    share = cost / (abs(scores["gibbs_nll"]) + cost) if cost else 0.0
    at_prior = any(map(_is_at_prior, collapse.layers))
    yield Finding(
        "ignores the data",
        f"predictions are hardly better than a constant (NLL {scores['nll']:.3g}, constant {constant:.3g}) "
        f"and the KL is {_percent(share)} of the loss",
        measured.colder
        if at_prior
        else "train longer or with a higher learning rate, and check that inputs are scaled and belong "
        "to their targets",
    )


def _is_at_prior(layer: LayerState) -> bool:
    return layer.is_matrix and (layer.at_prior or 0) > AT_PRIOR


def _at_prior(measured: Measured) -> Iterator[Finding]:
    for layer in filter(_is_at_prior, measured.collapse.layers):
        yield Finding(
            "at the prior",
            f"{_percent(layer.at_prior)} of {layer.name} equals the prior",
            f"{measured.colder} or narrow the layer",
        )


def _widths(measured: Measured) -> Iterator[Finding]:
    for layer in measured.collapse.layers:
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


def _calibration(measured: Measured) -> Iterator[Finding]:
    """Stated against observed probability: confidence and accuracy, or 90 % intervals and their coverage."""
    scores, noise = measured.scores, ""
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
    if stated < seen:
        what = f"not sure enough of itself ({numbers})"
        yield Finding("timid", what, f"{measured.colder}{noise}")
        return
    advice = (
        "average several networks (kasuri.prediction.ensemble), or stop earlier on validation data"
    )
    if measured.temperature < 0.5:
        higher = min(1.0, 3 * measured.temperature)
        advice = f"raise the temperature to about {higher:.2g}, or average several networks"
    yield Finding("overconfident", f"too sure of itself ({numbers})", f"{advice}{noise}")


def _gradients(measured: Measured) -> Iterator[Finding]:
    sizes = {layer.name: layer.weights for layer in measured.collapse.layers}
    reached = [row for row in measured.gradients if row["elements"] >= ALIVE * sizes[row["layer"]]]
    for row in measured.gradients:
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
            'train longer, with a higher learning rate, or valid=Validation(data, keep="last")',
        )


def _percent(share: float | None) -> str:
    return f"{100 * (share or 0.0):.0f} %"
