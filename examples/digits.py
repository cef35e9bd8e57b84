"""k-tied and mean-field posteriors against a plain network on scikit-learn's bundled digits.

    make demo        # or: python examples/digits.py

Three networks of the same shape are trained on 1,000 images of 8x8 pixels. The Bayesian ones are
the plain network converted in one call. The table compares them on images they never saw and, in
the last column, on images of noise, of which a network should not be sure.
"""

import argparse
import json
import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import weft

BATCH = 100
EPOCHS = 150
LEARNING_RATE = 3e-3
TRAIN, VALIDATE = 1000, 297  # the remaining 500 are the test set


@dataclass
class Result:
    """One line of the table."""

    name: str
    parameters: int
    accuracy: float
    nll: float
    ece: float
    entropy: float
    entropy_noise: float
    seconds: float

    HEADER = (
        f"{'network':<22}{'parameters':>11}{'accuracy':>10}{'NLL':>8}{'ECE':>8}"
        f"{'entropy':>10}{'on noise':>10}{'seconds':>9}"
    )

    def __str__(self) -> str:
        """The line."""
        return (
            f"{self.name:<22}{self.parameters:>11,}{self.accuracy:>10.1%}{self.nll:>8.3f}"
            f"{self.ece:>8.3f}{self.entropy:>10.2f}{self.entropy_noise:>10.2f}{self.seconds:>9.1f}"
        )


def calibration_error(probs: Tensor, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error: |accuracy - confidence|, averaged over bins of confidence."""
    confidence, guess = probs.max(-1)
    index = (confidence * bins).long().clamp(max=bins - 1)
    gap = torch.zeros(bins).index_add(0, index, (guess == y).float() - confidence)
    return (gap.abs().sum() / len(y)).item()


def network() -> nn.Sequential:
    """64-100-100-10, the network a user would already have."""
    return nn.Sequential(
        nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)
    )


def batches(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The training set in random order."""
    order = torch.randperm(len(x))
    return [(x[i], y[i]) for i in order.split(BATCH)]


def train_plain(x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    """An ordinary training loop."""
    net = network()
    opt = torch.optim.Adam(net.parameters(), LEARNING_RATE)
    for _ in range(epochs):
        for xb, yb in batches(x, y):
            F.cross_entropy(net(xb), yb).backward()
            opt.step()
            opt.zero_grad()
    return net


def train_bayesian(family: weft.Family, x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    """The same loop on the converted network: the loss is the only line that changes."""
    bnn = weft.bayesianize(network(), family, estimator="local")
    elbo = weft.ELBO(
        bnn,
        weft.Categorical(),
        weft.HeNormal(),
        num_data=len(x),
        temperature=0.03,  # of 0.003, 0.01, 0.03, 0.1, 0.3, 1 the best NLL with --validate (0.01 ties)
        kl_weight=weft.schedules.LinearOverEpochs(epochs / 3, steps_per_epoch=len(x) // BATCH),
    )
    opt = torch.optim.Adam(elbo.parameters(), LEARNING_RATE)
    step = 0
    for _ in range(epochs):
        for xb, yb in batches(x, y):
            elbo(xb, yb, step=step).loss.backward()
            opt.step()
            opt.zero_grad()
            step += 1
    return bnn


def evaluate(name: str, net: nn.Module, x: Tensor, y: Tensor, seconds: float) -> Result:
    """Probabilities averaged over 100 draws (the plain network has only one)."""
    noise = torch.rand(500, x.shape[1], generator=torch.Generator().manual_seed(0)) * 2 - 1
    if dict(weft.named_posteriors(net)):
        pred, odd = (
            weft.predict(net, inputs, samples=100, likelihood=weft.Categorical(), seed=0)
            for inputs in (x, noise)
        )
        probs, entropy, entropy_noise = pred.mean, pred.entropy, odd.entropy
        parameters = weft.summary(net).parameters
    else:
        with torch.no_grad():
            probs, unsure = net(x).softmax(-1), net(noise).softmax(-1)
        entropy, entropy_noise = (-torch.xlogy(p, p).sum(-1) for p in (probs, unsure))
        parameters = sum(p.numel() for p in net.parameters())
    return Result(
        name,
        parameters,
        accuracy=(probs.argmax(-1) == y).float().mean().item(),
        nll=F.nll_loss(probs.clamp_min(1e-12).log(), y).item(),
        ece=calibration_error(probs, y),
        entropy=entropy.mean().item(),
        entropy_noise=entropy_noise.mean().item(),
        seconds=seconds,
    )


def write(path: Path, args: argparse.Namespace, results: list[Result], start: float) -> None:
    """The table as JSON, with what is needed to make it again; written aside, then renamed."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    content = {
        "results": [asdict(result) for result in results],
        "settings": {
            "epochs": args.epochs,
            "batch": BATCH,
            "learning_rate": LEARNING_RATE,
            "scored": "validation" if args.validate else "test",
        },
        "seed": args.seed,
        "versions": {
            "weft": weft.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "commit": git.stdout.strip() or "unknown",
        "seconds": round(time.perf_counter() - start, 1),
    }
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(aside, path)


def main() -> None:
    """Train the three networks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--validate", action="store_true", help="score the validation images")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    args = parser.parse_args()
    began = time.perf_counter()
    torch.set_num_threads(1)  # such small layers lose more than they gain by sharing the work

    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    x = (torch.tensor(data.data, dtype=torch.float32) / 8 - 1)[order]  # pixels in [-1, 1]
    y = torch.tensor(data.target)[order]
    held_out = slice(TRAIN, TRAIN + VALIDATE) if args.validate else slice(TRAIN + VALIDATE, None)

    families: dict[str, weft.Family | None] = {
        "plain": None,
        "mean-field": weft.MeanField(),
        "k-tied, k = 2": weft.KTied(rank=2),
    }
    results = []
    for name, family in families.items():
        torch.manual_seed(args.seed)
        start = time.perf_counter()
        if family is None:
            net = train_plain(x[:TRAIN], y[:TRAIN], args.epochs)
        else:
            net = train_bayesian(family, x[:TRAIN], y[:TRAIN], args.epochs)
        seconds = time.perf_counter() - start
        results.append(evaluate(name, net, x[held_out], y[held_out], seconds))
        print(f"trained {name} in {seconds:.1f} s", flush=True)

    print(f"\n{Result.HEADER}\n" + "\n".join(map(str, results)))
    print(
        "\nNLL, ECE: lower is better. entropy: of the predictions, on digits and on noise (nats)."
    )

    if args.json:
        write(args.json, args, results, began)


if __name__ == "__main__":
    main()
