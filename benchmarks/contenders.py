"""Networks, and the contenders that train them and predict with them.

A contender is a name and a function that makes a `Run` of a network. All take the same step:
mean negative log-likelihood plus KL over NUM_DATA, backward, fused Adam. They differ only in
where the weights come from. Auto-encoders take minus the mean log-likelihood of binary pictures plus the
KL of the latent variables; they differ in what the encoder's last layer gives.
Contenders called natural take natural steps instead of Adam's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kasuri
from kasuri.vae import VAE, DiagonalLatent, FullLatent, KTiedLatent, Latent, MatrixNormalLatent

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


def auto_encoder(latent_variables: int) -> nn.Sequential:
    """Encoder without its last layer, and decoder; the contenders put the layer between them."""
    encoder, hidden = mlp(300, 300, 300, activation=nn.ELU)[:-1], []
    for ins, outs in pairwise((latent_variables, 300, 300, 300)):
        hidden += [nn.Linear(ins, outs), nn.ELU()]
    return nn.Sequential(encoder, nn.Sequential(*hidden, nn.Linear(300, 784)))


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
    "auto-encoder 784-300-300-300-40 with ELU": Network(lambda: auto_encoder(40), (784,)),
    "auto-encoder 784-300-300-300-9 with ELU": Network(lambda: auto_encoder(9), (784,)),
}


Loss = Callable[[Tensor, Tensor], Tensor]


class Run:
    """One contender at work on one network, whose forward pass draws its weights if they are random.

    `predict` gives class probabilities by a number of draws; None for that many forward passes.
    """

    def __init__(
        self, net: nn.Module, loss: Loss, predict: Callable[[Tensor, int], Tensor] | None = None
    ) -> None:
        self.net, self.loss = net, loss
        self.predict = self._averaged if predict is None else predict
        self.optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=True)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """One full training step; the loss is returned so that a broken run is noticed."""
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        return loss

    def _averaged(self, x: Tensor, samples: int) -> Tensor:
        self.net.eval()
        with torch.no_grad():
            total = self.net(x).softmax(-1)
            for _ in range(samples - 1):
                total += self.net(x).softmax(-1)
        return total / samples


def plain(net: nn.Sequential) -> Run:
    return Run(net, lambda x, y: F.cross_entropy(net(x), y))


def with_kl(net: nn.Module, kl: Callable[[], Tensor]) -> Run:
    """A network of another library, with its KL after a forward pass: NLL plus KL/NUM_DATA."""
    return Run(net, lambda x, y: F.cross_entropy(net(x), y) + kl() / NUM_DATA)


def converted(net: nn.Sequential, family: kasuri.Family, estimator: str) -> Run:
    """A network converted by kasuri, used through its public interface."""
    categorical = kasuri.Categorical()
    bnn = kasuri.bayesianize(net, family, estimator=estimator)
    elbo = kasuri.ELBO(bnn, categorical, prior=kasuri.Normal(PRIOR_SCALE), num_data=NUM_DATA)

    def predict(x: Tensor, samples: int) -> Tensor:
        options = {"likelihood": categorical, "estimator": estimator, "keep_draws": False}
        return kasuri.predict(bnn, x, samples, **options).mean

    return Run(elbo, lambda x, y: elbo(x, y).loss, predict)


def natural(net: nn.Sequential, family: kasuri.Family) -> Run:
    """As `kasuri.fit` trains by default: noise for each example, natural steps."""
    run = converted(net, family, "auto")
    run.optimizer = kasuri.Natural(run.net)
    return run


def plain_auto_encoder(net: nn.Sequential) -> Run:
    encoder, decoder = net
    width = next(decoder.parameters()).shape[1]
    whole = nn.Sequential(encoder, nn.Linear(300, width), decoder)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(whole(x), x, reduction="none").sum(1).mean()

    return Run(whole, loss)


def latent_auto_encoder(net: nn.Sequential, latent: Latent) -> Run:
    encoder, decoder = net
    vae = VAE(nn.Sequential(encoder, nn.Linear(300, latent.size)), decoder, latent)
    return Run(vae, lambda x, y: vae(x, y).loss)


@dataclass(frozen=True)
class Contender:
    """A name, a function from a plain network to a `Run`, and which networks it can take."""

    name: str
    build: Callable[[nn.Sequential], Run]
    linear_only: bool = False
    peer: bool = False


def kasuri_contender(family: kasuri.Family, estimator: str) -> Contender:
    """Kasuri with this family and estimator; the name is what tables and targets call it."""
    values = {option: getattr(family, option.name) for option in fields(family)}
    shown = [
        f"{option.name}={value!r}"
        for option, value in values.items()
        if value != option.default or option.name == "rank"
    ]
    name = f"kasuri {type(family).__name__}({', '.join(shown)}) {estimator}"
    return Contender(name, partial(converted, family=family, estimator=estimator))


def ours(families: Sequence[kasuri.Family], *estimators: str) -> list[Contender]:
    """Each family with each estimator: weights drawn once per step, or outputs for every example."""
    return [kasuri_contender(family, how) for family in families for how in estimators]


PLAIN = Contender("plain", plain)

NATURAL = {
    name: Contender(f"kasuri {name} natural", partial(natural, family=family))
    for name, family in (("KTied(rank=2)", kasuri.KTied(2)), ("MeanField()", kasuri.MeanField()))
}

MEAN_FIELD, K_TIED = kasuri.MeanField(), [kasuri.KTied(rank=rank) for rank in (1, 2, 3)]
STEP = [
    PLAIN,
    *ours([MEAN_FIELD], "shared", "local", "flipout"),
    *ours(K_TIED, "local"),
    *ours([K_TIED[1]], "shared", "flipout"),
    *NATURAL.values(),
]

# `shared` is what kasuri.predict does when not told otherwise; flipout is for training only
PREDICT = [PLAIN, *ours([MEAN_FIELD, *K_TIED], "shared", "local")]

# matrix normals: on all networks, and beside them on those where sides are long
MATRIX_NORMALS = [
    kasuri.MatrixNormal(),
    kasuri.MatrixNormalDiagonal(),
    kasuri.MatrixNormalDiagonal(diagonal="free"),
]
MATRIX = [
    PLAIN,
    *ours([MEAN_FIELD, *MATRIX_NORMALS], "shared", "local"),
    *ours([kasuri.ScaledMatrixNormal()], "shared"),
]
LOW_RANK = ours([kasuri.MatrixNormal(rows=16, columns=16)], "shared", "local")
FULL = ours([kasuri.MatrixNormal(rows="full", columns="full")], "shared", "local")


def latent_contenders(rows: int, columns: int) -> list[Contender]:
    """The plain auto-encoder and all families for so many latent variables, independent ones first."""
    latents = (
        DiagonalLatent(rows * columns),
        MatrixNormalLatent(rows, columns),
        FullLatent(rows * columns),
        KTiedLatent(rows, columns, rank=1),
    )
    return [
        Contender(PLAIN.name, plain_auto_encoder),
        *(
            Contender(f"kasuri.vae {latent}", partial(latent_auto_encoder, latent=latent))
            for latent in latents
        ),
    ]
