"""Networks, and the contenders that train them and predict with them.

A contender is a name and a function that makes a `Run` of a network. All take the same step:
mean negative log-likelihood plus KL over NUM_DATA, backward, fused Adam. They differ only in
where the weights come from.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kasuri

NUM_DATA = 50_000
PRIOR_SCALE = 0.2
LEARNING_RATE = 1e-3
CLASSES = 10


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """784-widths-10."""
    layers: list[nn.Module] = []
    for ins, outs in pairwise((784, *widths)):
        layers += [nn.Linear(ins, outs), activation()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], CLASSES))


def conv() -> nn.Sequential:
    """A small LeNet for 3x32x32 images with 3x3 kernels: two convolutions, two linear layers."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


@dataclass(frozen=True)
class Network:
    """A network to time on: how to make it, and the shape of one input."""

    build: Callable[[], nn.Sequential]
    input_shape: tuple[int, ...]
    linear_only: bool = True


NETWORKS = {
    "MLP 784-400-400-10": Network(lambda: mlp(400, 400), (784,)),
    "MLP 784-2048-2048-10": Network(lambda: mlp(2048, 2048), (784,)),
    "conv 3x32x32": Network(conv, (3, 32, 32), linear_only=False),
    "MLP 784-300-300-300-10 with ELU": Network(
        lambda: mlp(300, 300, 300, activation=nn.ELU), (784,)
    ),
}


class Run:
    """One contender at work on one network.

    Here it is a network whose forward pass draws its own weights, as peers' do, or draws nothing.

    Args:
        net: the network.
        kl: its KL, after a forward pass; None for a plain network.
    """

    def __init__(self, net: nn.Module, kl: Callable[[], Tensor] | None = None) -> None:
        self.net = net
        self.kl = kl
        self.optimizer = torch.optim.Adam(self.parameters(), lr=LEARNING_RATE, fused=True)

    def parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        return list(self.net.parameters())

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean negative log-likelihood plus KL/NUM_DATA."""
        nll = F.cross_entropy(self.net(x), y)
        return nll if self.kl is None else nll + self.kl() / NUM_DATA

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """One full training step; the loss is returned so that a broken run is noticed."""
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        return loss

    def predict(self, x: Tensor, samples: int) -> Tensor:
        """Class probabilities averaged over `samples` forward passes."""
        self.net.eval()
        with torch.no_grad():
            total = self.net(x).softmax(-1)
            for _ in range(samples - 1):
                total += self.net(x).softmax(-1)
            return total / samples


class WeftRun(Run):
    """A network converted by kasuri, used through its public interface.

    Args:
        net: the plain network.
        family: of the posteriors.
        estimator: how noise enters, in training and in prediction.
    """

    def __init__(self, net: nn.Module, family: kasuri.Family, estimator: str) -> None:
        self.estimator = estimator
        self.elbo = kasuri.ELBO(
            kasuri.bayesianize(net, family, estimator=estimator),
            kasuri.Categorical(),
            prior=kasuri.Normal(PRIOR_SCALE),
            num_data=NUM_DATA,
        )
        super().__init__(self.elbo.bnn)

    def parameters(self) -> list[nn.Parameter]:
        """Those of the objective, as users are told to write."""
        return list(self.elbo.parameters())

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Minus the ELBO per example."""
        return self.elbo(x, y).loss

    def predict(self, x: Tensor, samples: int) -> Tensor:
        """Class probabilities of `kasuri.predict`, draws not kept."""
        return kasuri.predict(
            self.net,
            x,
            samples,
            likelihood=kasuri.Categorical(),
            estimator=self.estimator,
            keep_draws=False,
        ).mean


@dataclass(frozen=True)
class Contender:
    """A name, a function from a plain network to a `Run`, and which networks it can take."""

    name: str
    build: Callable[[nn.Sequential], Run]
    linear_only: bool = False
    peer: bool = False


def kasuri_contender(family: kasuri.Family, estimator: str) -> Contender:
    """Kasuri with this family and estimator; the name is what tables and targets call it."""
    options = [(one.name, getattr(family, one.name), one.default) for one in fields(family)]
    told = [f"{key}={value!r}" for key, value, usual in options if value != usual or key == "rank"]
    name = f"kasuri {type(family).__name__}({', '.join(told)}) {estimator}"
    return Contender(name, lambda net: WeftRun(net, family, estimator))


def both(*families: kasuri.Family) -> list[Contender]:
    """Each family with weights drawn once per step, and with outputs drawn for every example."""
    return [kasuri_contender(one, how) for one in families for how in ("shared", "local")]


PLAIN = Contender("plain", Run)

STEP = [
    PLAIN,
    kasuri_contender(kasuri.MeanField(), "shared"),
    kasuri_contender(kasuri.MeanField(), "local"),
    kasuri_contender(kasuri.MeanField(), "flipout"),
    kasuri_contender(kasuri.KTied(rank=1), "local"),
    kasuri_contender(kasuri.KTied(rank=2), "local"),
    kasuri_contender(kasuri.KTied(rank=3), "local"),
    kasuri_contender(kasuri.KTied(rank=2), "shared"),
    kasuri_contender(kasuri.KTied(rank=2), "flipout"),
]

# `shared` is what kasuri.predict does when not told otherwise; flipout is for training only
PREDICT = [
    PLAIN,
    *(
        kasuri_contender(family, estimator)
        for estimator in ("shared", "local")
        for family in (
            kasuri.MeanField(),
            kasuri.KTied(rank=1),
            kasuri.KTied(rank=2),
            kasuri.KTied(rank=3),
        )
    ),
]

# matrix normals: on all networks, and beside them on those where sides are long
MATRIX = [
    PLAIN,
    *both(
        kasuri.MeanField(),
        kasuri.MatrixNormal(),
        kasuri.MatrixNormalDiagonal(),
        kasuri.MatrixNormalDiagonal(diagonal="free"),
    ),
    kasuri_contender(kasuri.ScaledMatrixNormal(), "shared"),
]
LOW_RANK = both(kasuri.MatrixNormal(rows=16, columns=16))
FULL = both(kasuri.MatrixNormal(rows="full", columns="full"))
