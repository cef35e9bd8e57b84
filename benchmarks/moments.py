"""Predictions without draws beside a thousand draws: `python -m benchmarks.moments`.

Five small networks are trained on scikit-learn's digits; every prediction of `kasuri.predict_moments` is
compared with 1000 draws. Writes results/numerics/moments.json and the table of docs/howto/export.md.
`--page` only makes the table again.
"""

import argparse
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kasuri
from benchmarks import environment
from benchmarks.table import table
from experiments import data as datasets
from experiments.networks import MLP, LeNet, ResNet
from kasuri.numerics.gaussian_moments import probit_softmax
from kasuri.prediction.moments.predict import in_chunks
from kasuri.prediction.moments.predictor import MomentNetwork
from kasuri.storage import write_atomically
from tools.tables import marks

OUT = environment.ROOT / "results/numerics/moments.json"
PAGE = environment.ROOT / "docs/howto/export.md"
MARK = "moments table"
KINDS = ("full", "diagonal")


class RowsLSTM(nn.Module):
    """A picture read row by row by an LSTM."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, width, batch_first=True)
        self.dense = nn.Linear(width, 10)

    def forward(self, rows: Tensor) -> Tensor:
        """Logits."""
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
        """Logits."""
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


def trained(
    shape: tuple[int, ...], make: Make, epochs: int
) -> tuple[kasuri.Fitted, Tensor, Tensor]:
    """A trained network, and test inputs and labels."""
    digits = datasets.load("digits")
    parts = [
        datasets.Split(one.x.reshape(-1, *shape), one.y)
        for one in (digits.train, digits.valid, digits.test)
    ]
    data = datasets.Dataset("digits", *parts, classes=digits.classes)
    torch.manual_seed(0)
    bnn = kasuri.bayesianize(make(data), kasuri.KTied(rank=2))
    fitted = kasuri.fit(bnn, data.train, data.valid, epochs=epochs, seed=0, show=False)
    return fitted, parts[2].x, parts[2].y


def seconds(call: Callable[[], object], rounds: int = 3) -> float:
    """The shortest of a few calls."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


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


def measure(name: str, epochs: int, draws: int) -> dict[str, Any]:
    """Everything about one architecture."""
    fitted, x, y = trained(*NETWORKS[name], epochs)
    elbo = fitted.objective
    truth = kasuri.predict(elbo, x, samples=draws, seed=1)
    found: dict[str, Any] = {
        "weights": sum(q.numel() for _, q in kasuri.named_posteriors(fitted.net)),
        f"{draws} draws": compared(truth, truth, y),
        f"{draws} other draws": compared(kasuri.predict(elbo, x, samples=draws, seed=2), truth, y),
        "100 draws": compared(kasuri.predict(elbo, x, samples=100, seed=3), truth, y),
    }
    found["100 draws"]["seconds"] = seconds(lambda: kasuri.predict(elbo, x, samples=100, seed=3))
    for kind in KINDS:
        network = MomentNetwork(fitted.net, (x,), kind)
        found[kind] = compared(kasuri.predict_moments(elbo, x, covariance=kind), truth, y)
        found[kind]["seconds"] = seconds(lambda network=network: in_chunks(network, (x,)))
    mean, covariance = in_chunks(MomentNetwork(fitted.net, (x,)), (x,))
    probit = probit_softmax(mean, covariance)
    found["full"]["probit_probability"] = float((probit - truth.mean).abs().amax(-1).mean())
    return found


def tables(result: dict[str, Any]) -> str:
    """The Markdown of a result."""
    draws = result["settings"]["draws"]
    rows: list[list[object]] = []
    for name, found in result["networks"].items():
        for label, key in (
            ("`full`", "full"),
            ("`diagonal`", "diagonal"),
            ("100 draws", "100 draws"),
            (f"{draws} other draws", f"{draws} other draws"),
        ):
            one = found[key]
            time_ = f"{1000 * one['seconds']:.0f}" if "seconds" in one else ""
            rows.append(
                [
                    name,
                    label,
                    f"{one['probability']:.4f}",
                    f"{one['std_ratio']:.2f}",
                    f"{one['std_spread']:.2f}",
                    f"{one['information_correlation']:.3f}",
                    f"{one['accuracy']:.3f}",
                    f"{one['nll']:.3f}",
                    time_,
                ]
            )
    header = ["", "", "probability", "std", "±", "information", "accuracy", "NLL", "ms"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    text = table(header, rows, words=2)
    worst = max(one["full"]["probit_probability"] for one in result["networks"].values())
    return (
        f"{text}\nWith the probit link instead of points, *probability* of `full` is at most {worst:.4f}. "
        f"Made by `{result['settings']['command']}` with {versions}, one thread of {result['processor']}."
    )


def put(page: Path, text: str) -> None:
    """Write the table between its marks."""
    begin, end = marks(MARK)
    before, _, rest = page.read_text().partition(begin)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--page", action="store_true", help="no measurement, only the table")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    if not given.page:
        torch.set_num_threads(1)
        networks = {}
        for name in given.networks:
            networks[name] = measure(name, given.epochs, given.draws)
            print(name, networks[name]["full"])
        told = {
            "settings": {
                "command": "python -m benchmarks.moments",
                "epochs": given.epochs,
                "draws": given.draws,
                "family": "KTied(rank=2)",
                "data": "digits, 500 test pictures",
            },
            "processor": environment.processor(),
            "load": environment.load(),
            "versions": environment.versions(only_kasuri=True),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **environment.commit(),
            "networks": networks,
        }
        given.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(given.out, (json.dumps(told, indent=1) + "\n").encode())
    if given.out == OUT:
        put(PAGE, tables(environment.stored(OUT)))


if __name__ == "__main__":
    main()
