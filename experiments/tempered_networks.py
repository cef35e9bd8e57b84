"""The networks of the slides on overparameterised networks."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from experiments.data.dataset import Dataset


class Divide(nn.Module):
    """Its input divided by a number: the 1/N of a network whose output is an average over neurons."""

    def __init__(self, by: int) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        """The quotient."""
        return x / self.by

    def extra_repr(self) -> str:
        """The number."""
        return str(self.by)


@dataclass(frozen=True)
class TwoLayer:
    """One hidden layer with ReLU, no biases, the output divided by the width.

    Args:
        hidden: width.
        spread: standard deviation of the initial weights.
    """

    hidden: int = 100
    spread: float = 0.01

    def __call__(self, data: Dataset) -> nn.Sequential:
        """The network."""
        inputs = math.prod(data.train.x.shape[1:])
        net = nn.Sequential(
            nn.Linear(inputs, self.hidden, bias=False),
            nn.ReLU(),
            nn.Linear(self.hidden, _outputs(data), bias=False),
            Divide(self.hidden),
        )
        return _small(net, self.spread)


@dataclass(frozen=True)
class CifarResNet:
    """A residual network of three stages with batch norm: 6n + 2 layers for n blocks per stage.

    A block is two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the size changes. The
    second convolution of a block starts at 0. The output is divided by the width of the last stage.

    Args:
        blocks: per stage; 3 for ResNet-20, 1 for ResNet-8.
        widths: channels of the stages.
        spread: standard deviation of the initial weights.
    """

    blocks: int = 3
    widths: tuple[int, int, int] = (16, 32, 64)
    spread: float = 0.01

    def __call__(self, data: Dataset) -> nn.Sequential:
        """The network."""
        before = self.widths[0]
        layers: list[nn.Module] = [
            nn.Conv2d(data.train.x.shape[1], before, 3, padding=1, bias=False),
            nn.BatchNorm2d(before),
            nn.ReLU(),
        ]
        for stage, width in enumerate(self.widths):
            for number in range(self.blocks):
                layers.append(_Block(before, width, 2 if stage and not number else 1))
                before = width
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, _outputs(data))]
        net = _small(nn.Sequential(*layers, Divide(before)), self.spread)
        for module in net.modules():
            if isinstance(module, _Block):
                nn.init.zeros_(module.conv2.weight)
        return net  # in the usual layout, as the other ResNet


class _Block(nn.Module):
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
        """Shortcut plus two convolutions."""
        inner = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return torch.relu(inner + self.shortcut(x))


def _outputs(data: Dataset) -> int:
    return data.train.y.shape[1] if data.classes is None else len(data.classes)


def _small(net: nn.Sequential, spread: float) -> nn.Sequential:
    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.normal_(layer.weight, std=spread)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return net
