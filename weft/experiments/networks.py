"""Architectures of the experiments, as functions of the data."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from weft.data.dataset import Dataset

Network = Callable[[Dataset], nn.Module]


@dataclass(frozen=True)
class MLP:
    """Fully connected layers with ReLU between them and He's initialisation, fitted to the data.

    Args:
        hidden: widths of the hidden layers.
        dropout: rate behind every hidden layer; the layer exists only if it is not 0.
    """

    hidden: Sequence[int] = (400, 400)
    dropout: float = 0.0

    def __call__(self, data: Dataset) -> nn.Sequential:
        """The network, initialised from torch's global generator."""
        inputs = math.prod(data.train.x.shape[1:])
        outputs = data.train.y.shape[1] if data.classes is None else len(data.classes)
        layers: list[nn.Module] = []
        for width in self.hidden:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            if self.dropout:
                layers.append(nn.Dropout(self.dropout))
            inputs = width
        layers.append(nn.Linear(inputs, outputs))
        for layer in layers:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        return nn.Sequential(*layers)
