"""Predictions without draws beside a thousand draws: `python -m benchmarks.moments`.

Five small networks are trained on scikit-learn's digits; every prediction of `kasuri.predict_moments` is
compared with 1000 draws. Writes results/numerics/moments.json; `make tables` makes the table of the page on
export.
"""

import math
import timeit
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import kasuri
from benchmarks import results
from experiments import data as datasets
from experiments.networks import MLP, LeNet, ResNet
from experiments.report.text_tables import markdown_grid
from kasuri.prediction.moments.moment_network import MomentNetwork
from kasuri.prediction.moments.predict_moments import in_chunks

OUT = results.ROOT / "results/numerics/moments.json"
EPOCHS, DRAWS = 40, 1000


class RowsLSTM(nn.Module):
    """A picture read row by row by an LSTM."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, width, batch_first=True)
        self.dense = nn.Linear(width, 10)

    def forward(self, rows: Tensor) -> Tensor:
        states, _ = self.lstm(rows)
        logits: Tensor = self.dense(states[:, -1])
        return logits


class RowsTransformer(nn.Module):
    """A picture's rows as the words of a Transformer encoder."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.places = nn.Parameter(torch.randn(8, width) * 0.1, requires_grad=False)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.dense = nn.Linear(width, 10)

    def forward(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.dense(self.encoder(self.embed(rows) + self.places).mean(1))
        return logits


Make = Callable[[datasets.Dataset], nn.Module]
NETWORKS: dict[str, tuple[tuple[int, ...], Make]] = {
    "MLP 64-100-100-10": ((64,), MLP((100, 100))),
    "LeNet": ((1, 8, 8), LeNet((8, 16), 3, 64)),
    "ResNet": ((1, 8, 8), ResNet((8, 16))),
    "LSTM": ((8, 8), lambda data: RowsLSTM()),
    "Transformer encoder": ((8, 8), lambda data: RowsTransformer()),
}


def trained(shape: tuple[int, ...], make: Make) -> tuple[kasuri.Fitted, Tensor, Tensor]:
    """A trained network, and test inputs and labels."""
    digits = datasets.load("digits")
    train, valid, test = (
        datasets.Split(part.x.reshape(-1, *shape), part.y)
        for part in (digits.train, digits.valid, digits.test)
    )
    torch.manual_seed(0)
    net = make(replace(digits, train=train))
    bnn = kasuri.bayesianize(net, kasuri.KTied(rank=2))
    return kasuri.fit(bnn, train, valid, epochs=EPOCHS, seed=0, show=False), test.x, test.y


def seconds(call: Callable[[], object]) -> float:
    """The shortest of three calls."""
    return min(timeit.repeat(call, number=1, repeat=3))


def compared(mine: kasuri.Prediction, truth: kasuri.Prediction, y: Tensor) -> dict[str, float]:
    """How far one prediction is from another, and what it is worth itself."""
    ratio = (mine.std.clamp(min=1e-6) / truth.std.clamp(min=1e-6)).log()
    seen = truth.std > 0.01  # of probabilities whose draws differ at all
    both = torch.stack([mine.mutual_information, truth.mutual_information])
    return {
        "probability": float((mine.mean - truth.mean).abs().amax(-1).mean()),
        "std_ratio": float(ratio[seen].mean().exp()),
        "std_spread": float(ratio[seen].std()),
        "information_correlation": float(torch.corrcoef(both)[0, 1]),
        "accuracy": float((mine.mean.argmax(-1) == y).float().mean()),
        "nll": float(-mine.mean.gather(1, y.unsqueeze(1)).clamp(min=1e-12).log().mean()),
    }


def probit_softmax(mean: Tensor, covariance: Tensor) -> Tensor:
    """E softmax(z) for z ~ N(mean, covariance), by the pairwise mean-field approximation.

    p_k ∝ 1 / Σ_j exp(-(m_k - m_j) / √(1 + π/8 · Var(z_k - z_j))).
    """
    own = covariance.diagonal(dim1=-2, dim2=-1)
    variance = own.unsqueeze(-1) + own.unsqueeze(-2) - 2 * covariance
    gap = mean.unsqueeze(-1) - mean.unsqueeze(-2)
    logits = -gap / (1 + math.pi / 8 * variance.clamp(min=0)).sqrt()
    return (-torch.logsumexp(logits, -1)).softmax(-1)


def measure(name: str) -> dict[str, Any]:
    fitted, x, y = trained(*NETWORKS[name])
    elbo = fitted.objective
    truth = kasuri.predict(elbo, x, samples=DRAWS, seed=1)
    measured: dict[str, Any] = {
        "weights": sum(q.numel() for _, q in kasuri.named_posteriors(fitted.net)),
        f"{DRAWS} draws": compared(truth, truth, y),
        f"{DRAWS} other draws": compared(kasuri.predict(elbo, x, samples=DRAWS, seed=2), truth, y),
        "100 draws": compared(kasuri.predict(elbo, x, samples=100, seed=3), truth, y),
    }
    measured["100 draws"]["seconds"] = seconds(lambda: kasuri.predict(elbo, x, samples=100, seed=3))
    network = MomentNetwork(fitted.net, (x,))
    measured["full"] = compared(kasuri.predict_moments(elbo, x), truth, y)
    measured["full"]["seconds"] = seconds(lambda: in_chunks(network, (x,)))
    probit = probit_softmax(*in_chunks(network, (x,)))
    measured["full"]["probit_probability"] = float((probit - truth.mean).abs().amax(-1).mean())
    return measured


def tables(result: results.Result) -> str:
    other = f"{result['settings']['draws']} other draws"
    labels = {"full": "`predict_moments`", "100 draws": "100 draws", other: other}
    digits = {"probability": 4, "std_ratio": 2, "std_spread": 2}
    digits |= dict.fromkeys(("information_correlation", "accuracy", "nll"), 3)
    rows = []
    for name, measured in result["networks"].items():
        for key, label in labels.items():
            scores = measured[key]
            cells = [f"{scores[score]:.{places}f}" for score, places in digits.items()]
            took = f"{1000 * scores['seconds']:.0f}" if "seconds" in scores else ""
            rows.append([name, label, *cells, took])
    header = ["", "", "probability", "std", "±", "information", "accuracy", "NLL", "ms"]
    worst = max(part["full"]["probit_probability"] for part in result["networks"].values())
    return (
        f"{markdown_grid([header, *rows], words=2)}\n\n"
        f"With the probit link instead of points, *probability* of `predict_moments` is at most {worst:.4f}. "
        f"Made by `{result['settings']['command']}` with {results.versions_label(result)}, one thread of "
        f"{result['cpu']}."
    )


def main() -> None:
    torch.set_num_threads(1)
    settings = {
        "command": "python -m benchmarks.moments",
        "epochs": EPOCHS,
        "draws": DRAWS,
        "family": "KTied(rank=2)",
        "data": "digits, 500 test pictures",
    }
    results.write(
        OUT, results.measured(settings, lambda: {"networks": {n: measure(n) for n in NETWORKS}})
    )


if __name__ == "__main__":
    main()
