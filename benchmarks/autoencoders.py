"""Auto-encoders to time: the same networks, trained with each latent family.

All take the same step: minus the mean log-likelihood of 100 binary pictures plus the KL, backward, fused
Adam. They differ in what the encoder's last layer gives. The plain one has no noise and no KL.
"""

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.contenders import PLAIN, Contender, Network, Run
from kasuri.vae import VAE, DiagonalLatent, FullLatent, KTiedLatent, Latent, MatrixNormalLatent

WIDTH = 300


def _layers(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for ins, outs in pairwise(widths):
        layers += [nn.Linear(ins, outs), nn.ELU()]
    return nn.Sequential(*layers)


def network(dimensions: int) -> Network:
    """Encoder without its last layer, and decoder; the contenders put the layer between them."""

    def build() -> nn.Sequential:
        hidden = (WIDTH,) * 3
        decoder = nn.Sequential(_layers(dimensions, *hidden), nn.Linear(WIDTH, 784))
        return nn.Sequential(_layers(784, *hidden), decoder)

    return Network(build, (784,))


NETWORKS = {f"auto-encoder 784-300-300-300-{z} with ELU": network(z) for z in (40, 9)}


class PlainRun(Run):
    """The auto-encoder without noise."""

    def __init__(self, net: nn.Sequential) -> None:
        trunk, decoder = net
        first = next(decoder.parameters())
        super().__init__(nn.Sequential(trunk, nn.Linear(WIDTH, first.shape[1]), decoder))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Minus the log-likelihood per example."""
        return F.binary_cross_entropy_with_logits(self.net(x), x, reduction="none").sum(1).mean()


class LatentRun(Run):
    """The auto-encoder with a latent family, through kasuri's public interface."""

    def __init__(self, net: nn.Sequential, latent: Latent) -> None:
        trunk, decoder = net
        self.vae = VAE(nn.Sequential(trunk, nn.Linear(WIDTH, latent.size)), decoder, latent)
        super().__init__(self.vae)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Minus the ELBO per example."""
        return self.vae(x, y).loss


def contender(latent: Latent) -> Contender:
    """The name is what tables and targets call it."""
    return Contender(f"kasuri.vae {latent}", lambda net: LatentRun(net, latent))


def contenders(rows: int, columns: int) -> list[Contender]:
    """The plain auto-encoder and all families for so many latent variables, diagonal first."""
    z = rows * columns
    latents = [
        DiagonalLatent(z),
        MatrixNormalLatent(rows, columns),
        FullLatent(z),
        KTiedLatent(rows, columns, rank=1),
    ]
    return [Contender(PLAIN.name, PlainRun), *map(contender, latents)]


CONTENDERS = dict(zip(NETWORKS, (contenders(20, 2), contenders(3, 3)), strict=True))
DIAGONAL = {network: ours[1].name for network, ours in CONTENDERS.items()}
BOUND = 1.3  # of matrix-normal and full latent variables, in units of independent ones
