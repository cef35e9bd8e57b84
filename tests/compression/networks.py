"""Architectures whose units are coupled in every way that compression has to solve."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import kasuri


class Residual(nn.Module):
    """Batch norm, a residual sum, concatenation, and a flatten before the dense layers."""

    def __init__(self, padding: int = 1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, padding=padding)
        self.norm1 = nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.left = nn.Conv2d(8, 5, 1)
        self.right = nn.Conv2d(8, 6, 3, padding=1, padding_mode="circular")
        self.dense = nn.Linear(11 * 16, 12)
        self.out = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.stem(x)))
        x = torch.relu(x + self.norm2(self.inner(x)))
        x = torch.cat([torch.tanh(self.left(x)), self.right(x)], 1)
        x = nn.functional.max_pool2d(x, 2)
        return self.out(nn.functional.elu(self.dense(x.flatten(1))))


class Beside(nn.Module):
    """What a layer makes beside the input of the network, of vectors and of sequences."""

    def __init__(self, dims: int = 2) -> None:
        super().__init__()
        self.dims = dims
        self.first = nn.Linear(5, 8)
        self.second = nn.Linear(13, 6)
        self.out = nn.Linear(14, 3)

    def forward(self, x: Tensor) -> Tensor:
        made = torch.relu(self.first(x))
        again = torch.tanh(self.second(torch.cat([x, made], dim=-1)))
        return self.out(torch.cat([again, made], dim=self.dims - 1))


class Grouped(nn.Module):
    """A convolution in groups, a depthwise one, and PReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 12, 3)
        self.act = nn.PReLU(12)
        self.depthwise = nn.Conv2d(12, 12, 3, groups=12)
        self.grouped = nn.Conv2d(12, 8, 3, groups=2)
        self.point = nn.Conv2d(8, 6, 1)
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.depthwise(self.act(self.first(x))))
        x = torch.relu(self.point(torch.relu(self.grouped(x))))
        return self.out(x.mean((2, 3)))


class Recurrent(nn.Module):
    """Words, an LSTM and its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.lstm = nn.LSTM(6, 10, batch_first=True)
        self.hidden = nn.Linear(10, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        _, (h, _) = self.lstm(self.words(x))
        return self.out(torch.relu(self.hidden(h[-1])))


class Attending(nn.Module):
    """A transformer layer between linear ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 16)
        self.layer = nn.TransformerEncoderLayer(16, 8, 24, batch_first=True)
        self.out = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.embed(x)).mean(1))


class Transposed(nn.Module):
    """An hourglass: down, up by a transposed convolution, and a gate of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv1d(2, 8, 3, stride=2)
        self.gate = nn.Linear(8, 8)
        self.up = nn.ConvTranspose1d(8, 6, 3, stride=2)
        self.out = nn.Conv1d(6, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.down(x))
        x = x * torch.sigmoid(self.gate(x.mean(2))).unsqueeze(2)
        return self.out(torch.relu(self.up(x)))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16),
        nn.Tanh(),
        nn.Linear(16, 12),
        nn.BatchNorm1d(12),
        nn.GELU(),
        nn.Linear(12, 3),
    )


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 16, 20),
        nn.ReLU(),
        nn.Linear(20, 10),
    )


def tokens(batch: int) -> Tensor:
    return torch.randint(20, (batch, 5))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "mlp": (mlp, lambda n: torch.randn(n, 6).double()),
    "lenet": (lenet, lambda n: torch.randn(n, 1, 28, 28).double()),
    "residual": (Residual, lambda n: torch.randn(n, 2, 8, 8).double()),
    "beside": (Beside, lambda n: torch.randn(n, 5).double()),
    "beside, sequences": (lambda: Beside(3), lambda n: torch.randn(n, 7, 5).double()),
    "grouped": (Grouped, lambda n: torch.randn(n, 3, 10, 10).double()),
    "recurrent": (Recurrent, tokens),
    "attention": (Attending, lambda n: torch.randn(n, 5, 4).double()),
    "transposed": (Transposed, lambda n: torch.randn(n, 2, 9).double()),
}


def bayesian(name: str, family: kasuri.Family | None = None, seed: int = 0) -> nn.Module:
    """A network in double precision with random means, scales and statistics of batch norms."""
    torch.manual_seed(seed)
    net = NETWORKS[name][0]().double()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    bnn = kasuri.bayesianize(net, kasuri.MeanField() if family is None else family)
    for _, q in kasuri.named_posteriors(bnn):
        for key, parameter in q.named_parameters():
            if key.endswith("log_scale"):
                parameter.data.normal_(-1.5, 1.0)
            elif key == "loc" and parameter.dim() == 1:
                parameter.data.normal_()
    return bnn.eval()
