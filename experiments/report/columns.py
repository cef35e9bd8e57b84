"""What a comparison can show: one column per score, and which direction is better."""

from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower", "target", "neither"]


@dataclass(frozen=True)
class Column:
    """One score: where it is in a result, how it is called and shown, what is better.

    Attributes:
        key: in `metrics`, `validation` and `published` of a result.
        label: heading, with the unit.
        better: direction; a cost (parameters, seconds) has none and no best value is marked.
        explanation: one sentence for a reader who does not know the score.
        factor: shown number = stored number · factor.
        decimals: at most so many behind the point.
        target: the ideal value if `better` is "target".
    """

    key: str
    label: str
    better: Better
    explanation: str
    factor: float = 1.0
    decimals: int = 4
    target: float = 0.0

    def loss(self, value: float) -> float:
        """How bad a value is: the least is the best.

        Examples:
            >>> ACCURACY.loss(0.9) < ACCURACY.loss(0.8)
            True
        """
        if self.better == "target":
            return abs(value - self.target)
        return -value if self.better == "higher" else value


def _coverage(percent: int) -> Column:
    return Column(
        f"coverage_{percent}",
        f"{percent} % coverage (%)",
        "target",
        f"Share of targets inside the {percent} % predictive interval; {percent} is right.",
        factor=100.0,
        decimals=2,
        target=percent / 100,
    )


PARAMETERS = Column(
    "parameters", "parameters", "neither", "Numbers that training changes.", decimals=0
)
ACCURACY = Column(
    "accuracy",
    "accuracy (%)",
    "higher",
    "Share of examples whose most probable class is right.",
    factor=100.0,
    decimals=2,
)
SECONDS = Column(
    "seconds",
    "training (s)",
    "neither",
    "Seconds of training; compare only runs on the same idle machine.",
    decimals=1,
)
_STEPS = (1000, 2000, 3000, 5000, 9000)  # at which experiments look at convergence


def _by_step(key: str, label: str, better: Better, explanation: str) -> tuple[Column, ...]:
    return tuple(
        Column(f"{key}_{step}", f"{label}, step {step}", better, explanation, decimals=2)
        for step in _STEPS
    )


COLUMNS: tuple[Column, ...] = (
    PARAMETERS,
    ACCURACY,
    Column("rmse", "RMSE", "lower", "Root mean squared error of the predictive mean."),
    Column("nll", "NLL", "lower", "Mean negative log-likelihood of the predictive, in nats."),
    Column("crps", "CRPS", "lower", "Continuous ranked probability score, in units of the target."),
    Column("ece", "ECE", "lower", "Expected calibration error: mean |confidence - accuracy|."),
    Column(
        "ece_batched",
        "ECE of batches",
        "neither",
        "Calibration error averaged over batches of 128, for comparison: larger than that of the set.",
    ),
    Column("brier", "Brier", "lower", "Mean squared distance of probabilities to the truth."),
    _coverage(50),
    _coverage(90),
    _coverage(95),
    Column("neg_elbo", "−ELBO", "lower", "Negative evidence lower bound per example, in nats."),
    Column(
        "log_likelihood",
        "log-likelihood",
        "higher",
        "Importance-weighted log-likelihood of an example, in nats.",
        decimals=2,
    ),
    Column("elbo", "ELBO", "higher", "Evidence lower bound of an example, in nats.", decimals=2),
    Column(
        "active_units",
        "active units",
        "neither",
        "Latent variables whose posterior mean varies with the input.",
        decimals=1,
    ),
    Column(
        "ood_auroc_entropy",
        "OOD AUROC, entropy",
        "higher",
        "How well entropy tells foreign inputs from test inputs: 1 always, 0.5 by chance.",
    ),
    Column(
        "ood_auroc_mutual_information",
        "OOD AUROC, mutual information",
        "higher",
        "How well mutual information tells foreign inputs from test inputs.",
    ),
    *_by_step(
        "neg_elbo",
        "−ELBO",
        "lower",
        "Negative ELBO on validation data after so many steps, in nats.",
    ),
    *_by_step(
        "snr_median",
        "SNR",
        "neither",
        "Median over parameters of E[g]²/Var[g], g being their gradients.",
    ),
    Column("eta", "η", "neither", "Temperature: weight of the KL in the ELBO.", decimals=6),
    Column("kl_per_neuron", "KL per neuron", "neither", "Nats per hidden unit.", decimals=3),
    Column(
        "at_prior",
        "at the prior (%)",
        "neither",
        "Share of weights that cannot be told from the prior.",
        factor=100.0,
        decimals=1,
    ),
    Column("weights_left", "weights left", "lower", "Weights not pruned.", decimals=0),
    Column("rows_left", "rows left", "lower", "Outputs of layers not pruned.", decimals=0),
    Column("columns_left", "columns left", "lower", "Inputs of layers not pruned.", decimals=0),
    Column(
        "flops_left",
        "MACs and biases left",
        "lower",
        "Multiply-accumulates and biases of the small network, for one example.",
        decimals=0,
    ),
    Column(
        "error",
        "error of the small network (%)",
        "lower",
        "Share of wrong answers of the plain network that is left, as it was cut.",
        factor=100.0,
        decimals=2,
    ),
    Column(
        "speedup", "times faster", "higher", "Time per call before and after, same run.", decimals=1
    ),
    Column(
        "accuracy_pruned",
        "pruned accuracy (%)",
        "higher",
        "Accuracy without the pruned weights.",
        factor=100.0,
        decimals=2,
    ),
    Column("nll_pruned", "pruned NLL", "lower", "NLL without the pruned weights."),
    SECONDS,
)
