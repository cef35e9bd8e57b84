"""A training loop of one's own: mean-field and k-tied posteriors on scikit-learn's bundled digits.

    python examples/digits.py

`kasuri.fit` does this and more in one call; this is what to change in a loop that one already has.
"""

import argparse

import torch
from torch import nn

import kasuri
from experiments import data as datasets
from kasuri.training import Batches


def network() -> nn.Sequential:
    """64-100-100-10, the network a user would already have."""
    return nn.Sequential(
        nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)
    )


def train(family: kasuri.Family, data: datasets.Dataset, epochs: int) -> kasuri.ELBO:
    """An ordinary loop over a converted network: the loss is the only line that changes."""
    batches = Batches(data.train.x, data.train.y, batch_size=100)
    bnn = kasuri.bayesianize(network(), family, estimator="local")
    elbo = kasuri.ELBO(
        bnn,
        kasuri.Categorical(),
        kasuri.HeNormal(),
        num_data=len(data.train),
        temperature=0.03,  # of 0.003, 0.01, 0.03, 0.1, 0.3, 1 the best NLL on validation images
        kl_weight=kasuri.schedules.LinearOverEpochs(epochs / 3, steps_per_epoch=len(batches)),
    )
    opt = torch.optim.Adam(elbo.parameters(), 3e-3)
    step = 0
    for _ in range(epochs):
        for x, y in batches:
            elbo(x, y, step=step).loss.backward()
            opt.step()
            opt.zero_grad()
            step += 1
    return elbo


def main() -> None:
    """Train and print the scores on images that were never seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=150)
    args = parser.parse_args()
    torch.set_num_threads(1)  # such small layers lose more than they gain by sharing the work
    data = datasets.load("digits")
    for family in (kasuri.MeanField(), kasuri.KTied(rank=2)):
        torch.manual_seed(0)
        scores = kasuri.evaluate(train(family, data, args.epochs), data.test)
        print(
            f"{family}: accuracy {scores['accuracy']:.1%} ± {scores['accuracy_sem']:.1%}, "
            f"NLL {scores['nll']:.3f} ± {scores['nll_sem']:.3f}, ECE {scores['ece']:.3f}"
        )


if __name__ == "__main__":
    main()
