"""Small networks of five architectures, with inputs."""

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.pool, self.dense = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(x)
        h = h + self.conv2(self.norm(h).relu())
        return self.dense(self.pool(h).flatten(1))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 5, padding_idx=0)
        self.lstm, self.dense = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        return self.dense(states[:, -1])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 10, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.dense = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.encoder(x).mean(1))


def lenet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 3, stride=2, groups=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 10), nn.ELU(), nn.Linear(10, 3))


NAMES = ("mlp", "lenet", "resnet", "lstm", "transformer")


def make(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    if name == "mlp":
        return mlp(), torch.randn(6, 4)
    if name == "lenet":
        return lenet(), torch.randn(6, 1, 8, 8)
    if name == "resnet":
        net = Residual()
        net(torch.randn(20, 2, 4, 4) * 2 + 1)  # statistics other than 0 and 1
        return net, torch.randn(6, 2, 4, 4)
    if name == "lstm":
        return Words(), torch.randint(12, (6, 4))
    return Encoder(), torch.randn(6, 3, 8)
