"""`kasuri.diagnose`: what is wrong with a trained posterior, in plain words, and what to try."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from kasuri.diagnostics import finding_rules as rules
from kasuri.diagnostics.collapse import END, Collapse, collapse_check
from kasuri.diagnostics.finding_rules import Finding, Measured
from kasuri.diagnostics.gradients import GradientSNR
from kasuri.diagnostics.reference.joint import LogJoint
from kasuri.diagnostics.reference.pareto import posterior_k_hat
from kasuri.inputs import take
from kasuri.objectives.elbo import ELBO
from kasuri.objectives.trained import Trained, objective_of
from kasuri.posteriors.base import Dense
from kasuri.prediction.evaluate import evaluate
from kasuri.priors.normal import normal_precisions
from kasuri.streams import mix, seeded
from kasuri.training.batches import tensors

BATCHES, BATCH_SIZE = 20, 128  # of the gradients' signal-to-noise ratio
SMALL = 100  # weights: in more dimensions k-hat is large for good posteriors, too
FEW = 5000  # examples: k-hat runs all of them through the network a thousand times


@dataclass(frozen=True)
class Diagnosis:
    """What was found, and what it was found by.

    Args:
        findings: what is wrong; empty if nothing is.
        collapse: the posterior against its prior.
        scores: of `kasuri.evaluate`.
        k_hat: of importance weights; None where it says nothing.
        notes: what could not be looked at.
    """

    findings: tuple[Finding, ...]
    collapse: Collapse | None
    scores: dict[str, float]
    k_hat: float | None
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Findings, notes and the state of every weight, ready for JSON."""
        return {
            "findings": [asdict(finding) for finding in self.findings],
            "collapse": None if self.collapse is None else self.collapse.as_dict(),
            "k_hat": self.k_hat if self.k_hat is not None and math.isfinite(self.k_hat) else None,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        """The findings as a list for the terminal."""
        lines = [f"- {finding}" for finding in self.findings] or ["Nothing to report."]
        return "\n".join([*lines, *(f"({note})" for note in self.notes)])


def diagnose(
    model: nn.Module | Trained, data: Any, train: Any = None, *, samples: int = 32, seed: int = 0
) -> Diagnosis:
    """Look for what commonly goes wrong with a trained Bayesian network.

    It compares weights and predictions with the prior, scores with those of a constant prediction,
    stated with observed probabilities, and, with the training data, the gradients' signal with their noise
    and (for at most 100 weights; a finding only if they are of one layer) the posterior with the true one.
    Print the result.

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
    elbo = objective_of(model)
    if not isinstance(elbo, ELBO):
        raise TypeError(
            f"diagnose({type(model).__name__}): likelihood and prior are needed; give the kasuri.ELBO or "
            "what kasuri.fit returned"
        )
    broken = rules.not_finite(elbo)
    if broken:
        return Diagnosis(broken, None, {}, None, ("nothing else can be said about such a network",))
    scores = evaluate(elbo, data, samples=samples, seed=seed)
    collapse = collapse_check(elbo, data, samples=samples, seed=seed)
    gradients, k_hat, obstacle = [], None, None
    if train is None:
        obstacle = "gradients and k-hat were not looked at: give the training data, train=..."
    else:
        gradients = gradient_rows(elbo, train, seed)
        obstacle = _no_k_hat(elbo, train)
        if obstacle is None:
            with seeded(mix(seed, 3)):
                k_hat = posterior_k_hat(LogJoint(elbo, train, elbo.temperature(END)))
    measured = Measured(
        collapse=collapse,
        scores=scores,
        constant_nll=rules.constant_nll(tensors(data)[1], "accuracy" in scores),
        temperature=elbo.weight_at(END),
        num_data=elbo.num_data,
        gradients=gradients,
        k_hat=k_hat,
    )
    notes = () if obstacle is None else (obstacle,)
    return Diagnosis(rules.all_findings(measured), collapse, scores, k_hat, notes)


def gradient_rows(elbo: ELBO, train: Any, seed: int = 0) -> list[dict[str, Any]]:
    """Signal-to-noise ratios of gradients at the present parameters, over random batches.

    Gradients that were there are lost; parameters and generators stay as they are.
    """
    x, y = tensors(train)
    size = min(BATCH_SIZE, len(y))
    recorder = GradientSNR([BATCHES], window=BATCHES, of="all")
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


def _no_k_hat(elbo: ELBO, train: Any) -> str | None:
    """Why k-hat would say nothing here, if so."""
    posteriors = [q for group in elbo._posteriors for q in group]
    if sum(q.numel() for q in posteriors) > SMALL or len(tensors(train)[1]) > FEW:
        return (
            f"k-hat was not looked at: above {SMALL} weights or {FEW:,} examples it says little or "
            "costs much"
        )
    fixed = all(normal_precisions(prior, (1, 1)) is not None for prior, _ in elbo.groups())
    if not fixed or not all(isinstance(q, Dense) for q in posteriors):
        return "k-hat was not looked at: prior or family has no density to evaluate"
    return None
