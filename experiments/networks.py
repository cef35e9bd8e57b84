"""Architectures of the experiments, as functions of the data. Weights start from torch's global generator."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from experiments.data import Dataset

Network = Callable[[Dataset], nn.Module]


@dataclass(frozen=True)
class MLP:
    """Fully connected layers with ReLU between them and He's initialisation."""

    hidden: Sequence[int] = (400, 400)
    dropout: float = 0.0  # rate behind every hidden layer; the layer exists only if it is not 0
    per_target: int = field(default=1, repr=False)  # outputs for each target; 2 for mean and scale
    activation: ClassVar[type[nn.Module]] = nn.ReLU

    def __call__(self, data: Dataset) -> nn.Sequential:
        widths = (math.prod(data.train.x.shape[1:]), *self.hidden)
        layers: list[nn.Module] = []
        for before, width in pairwise(widths):
            layers += [nn.Linear(before, width), self.activation()]
            layers += [nn.Dropout(self.dropout)] * bool(self.dropout)
        return _he(*layers, nn.Linear(widths[-1], self.per_target * data.outputs))


class ELUMLP(MLP):
    """The same with ELU."""

    activation = nn.ELU


@dataclass(frozen=True)
class LeNet5:
    """LeNet-5 of Caffe, for pictures of 28×28: convolutions of 5×5 with pooling and without activation."""

    channels: tuple[int, int] = (20, 50)
    hidden: int = 500

    def __call__(self, data: Dataset) -> nn.Sequential:
        first, second = self.channels
        net = _he(
            nn.Conv2d(data.train.x.shape[1], first, 5),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * second, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, data.outputs),
        )
        return _channels_last(net)


@dataclass(frozen=True)
class LeNet:
    """Two convolutions that keep the size, with pooling, and two layers "dense.0" and "dense.2"."""

    channels: tuple[int, int] = (32, 64)
    kernel: int = 5
    hidden: int = 512

    def __call__(self, data: Dataset) -> nn.Sequential:
        inputs, height, width = data.train.x.shape[1:]
        layers: list[nn.Module] = []
        for before, after in pairwise((inputs, *self.channels)):
            convolution = nn.Conv2d(before, after, self.kernel, padding="same")
            layers += [convolution, nn.ReLU(), nn.MaxPool2d(2)]
        dense = nn.Sequential(
            nn.Linear(self.channels[-1] * (height // 4) * (width // 4), self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, data.outputs),
        )
        net = nn.Sequential()
        net.add_module("features", nn.Sequential(*layers, nn.Flatten()))
        net.add_module("dense", dense)
        return _channels_last(_started(net, _he_normal))


@dataclass(frozen=True)
class VGG:
    """Blocks of 3×3 convolutions with ELU, each block ended by pooling; one dense layer; no biases."""

    blocks: tuple[tuple[int, ...], ...] = ((10,) * 3, (20,) * 3, (40,) * 3, (20,) * 3)  # channels

    def __call__(self, data: Dataset) -> nn.Sequential:
        before, *size = data.train.x.shape[1:]
        layers: list[nn.Module] = []
        for block in self.blocks:
            for width in block:
                layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.ELU()]
                before = width
            layers.append(nn.MaxPool2d(2))
            size = [side // 2 for side in size]
        last = nn.Linear(before * math.prod(size), data.outputs, bias=False)
        return _channels_last(_he(*layers, nn.Flatten(), last))


@dataclass(frozen=True)
class LSTM:
    """Words to vectors, one recurrent layer, one logit from its last state."""

    vocabulary: int = 20_000  # number of word ids
    width: int = 128  # of the word vectors and of the state

    def __call__(self, data: Dataset) -> nn.Module:
        return _Sentiment(self.vocabulary, self.width)


class _Sentiment(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.dense = nn.Linear(width, 1)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        nn.init.xavier_uniform_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)
        weights = dict(self.lstm.named_parameters())
        nn.init.xavier_uniform_(weights["weight_ih_l0"])
        nn.init.orthogonal_(weights["weight_hh_l0"])
        # torch adds two biases where one is enough: the second is fixed at 0
        nn.init.zeros_(weights["bias_hh_l0"]).requires_grad_(False)
        nn.init.zeros_(weights["bias_ih_l0"])
        with torch.no_grad():
            weights["bias_ih_l0"][width : 2 * width] = 1.0  # forget gates are open at first

    def forward(self, words: Tensor) -> Tensor:
        """Logits (batch,) of the class 1."""
        states, _ = self.lstm(self.embedding(words))
        logits: Tensor = self.dense(states[:, -1]).squeeze(-1)
        return logits


@dataclass(frozen=True)
class ResNet:
    """A convolution, four pre-activation blocks of two, and a dense layer.

    The topology of TensorFlow Probability's example, which the supplement of the k-tied paper calls
    ResNet-18: a projection in every block, strides 1, 2, 2, 2.
    """

    widths: tuple[int, ...] = (64, 128, 256, 512)  # channels of the blocks; these in the paper

    def __call__(self, data: Dataset) -> nn.Sequential:
        first, last = self.widths[0], self.widths[-1]
        layers: list[nn.Module] = [nn.Conv2d(data.train.x.shape[1], first, 3, padding=1)]
        for number, (before, width) in enumerate(pairwise((first, *self.widths))):
            layers.append(_PreActivationBlock(before, width, stride=1 if number == 0 else 2))
        layers += [nn.BatchNorm2d(last), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        # not channels_last: with flipout, torch 2.13 corrupts memory there on processors without AVX-512
        return _he(*layers, nn.Linear(last, data.outputs))


class _PreActivationBlock(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(before), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.project = nn.Conv2d(before, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        active = self.norm1(x).relu()
        inner = self.conv2(self.norm2(self.conv1(active)).relu())
        out: Tensor = self.project(active) + inner
        return out


class Divide(nn.Module):
    """Its input divided by a number: the 1/N of a network whose output is an average over neurons."""

    def __init__(self, by: int) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x / self.by


@dataclass(frozen=True)
class TwoLayer:
    """One hidden layer with ReLU, no biases, the output divided by the width."""

    hidden: int = 100
    spread: float = 0.01  # standard deviation of the initial weights

    def __call__(self, data: Dataset) -> nn.Sequential:
        net = nn.Sequential(
            nn.Linear(math.prod(data.train.x.shape[1:]), self.hidden, bias=False),
            nn.ReLU(),
            nn.Linear(self.hidden, data.outputs, bias=False),
            Divide(self.hidden),
        )
        return _started(net, lambda weight: nn.init.normal_(weight, std=self.spread))


@dataclass(frozen=True)
class CifarResNet:
    """A residual network of three stages with batch norm: 6n + 2 layers for n blocks per stage.

    A block is two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the size changes. The
    second convolution of a block starts at 0. The output is divided by the width of the last stage.
    """

    blocks: int = 3  # per stage; 3 for ResNet-20, 1 for ResNet-8
    widths: tuple[int, int, int] = (16, 32, 64)  # channels of the stages
    spread: float = 0.01  # standard deviation of the initial weights

    def __call__(self, data: Dataset) -> nn.Sequential:
        before = self.widths[0]
        layers: list[nn.Module] = [
            nn.Conv2d(data.train.x.shape[1], before, 3, padding=1, bias=False),
            nn.BatchNorm2d(before),
            nn.ReLU(),
        ]
        for stage, width in enumerate(self.widths):
            for number in range(self.blocks):
                layers.append(_ResidualBlock(before, width, 2 if stage and not number else 1))
                before = width
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, data.outputs)]
        net = nn.Sequential(*layers, Divide(before))
        _started(net, lambda weight: nn.init.normal_(weight, std=self.spread))
        for module in net.modules():
            if isinstance(module, _ResidualBlock):
                nn.init.zeros_(module.conv2.weight)
        return net  # in the usual layout, as the other ResNet


class _ResidualBlock(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != width:
            project = nn.Conv2d(before, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(project, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return torch.relu(inner + self.shortcut(x))


def auto_encoder(
    inputs: int, hidden: Sequence[int], size: int, dimensions: int
) -> tuple[nn.Sequential, nn.Sequential]:
    """Encoder and decoder, fully connected with ELU, He's initialisation.

    The encoder gives `size` numbers, of which the first `dimensions` are means. Of its last layer only these
    start at random: all other numbers start at 0, so that every latent family starts with the variances of
    the prior and no correlation. That layer is drawn last: with the same seed, all families start with the
    same networks and the same means.
    """
    decoder = _he(*_elus([dimensions, *hidden]), nn.Linear(hidden[-1], inputs))
    trunk = _he(*_elus([inputs, *hidden]))
    means = nn.Linear(hidden[-1], dimensions)
    _he(means)
    last = nn.Linear(hidden[-1], size)
    with torch.no_grad():
        last.weight.zero_()[:dimensions] = means.weight
        last.bias.zero_()
    return nn.Sequential(*trunk, last), decoder


def _elus(widths: Sequence[int]) -> list[nn.Module]:
    """Linear layers of these widths, with ELU behind each."""
    return [layer for ins, outs in pairwise(widths) for layer in (nn.Linear(ins, outs), nn.ELU())]


def _channels_last(net: nn.Sequential) -> nn.Sequential:
    """The same network, laid out pixel by pixel: max-pooling of channel after channel is slow on a CPU."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)
    return net


def _he(*layers: nn.Module) -> nn.Sequential:
    return _started(nn.Sequential(*layers), _he_normal)


def _he_normal(weight: Tensor) -> None:
    nn.init.kaiming_normal_(weight, nonlinearity="relu")


def _started(net: nn.Sequential, draw: Callable[[Tensor], object]) -> nn.Sequential:
    """The same network, its weights drawn anew and its biases 0."""
    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            draw(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return net
