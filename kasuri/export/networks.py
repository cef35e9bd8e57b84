"""The networks that are exported: modules of positional tensors that put out named tensors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.export.outputs import Reported, parts_of
from kasuri.inputs import call as returned
from kasuri.likelihoods import Likelihood
from kasuri.prediction.moments.trace import Positional as Called
from kasuri.prediction.moments.points import normal_points, spread_out
from kasuri.prediction.predict import summarise
from kasuri.likelihoods.predictions import Draws
from kasuri.prediction.moments.moment_network import MomentNetwork


class Servable(nn.Module, ABC):
    """Inputs as they come, scaled if need be, to named outputs.

    Args:
        inputs: (mean, scale) of the first input, which is standardised inside, or None.
    """

    shift: Tensor | None
    width: Tensor | None

    def __init__(self, inputs: tuple[Tensor, Tensor] | None) -> None:
        super().__init__()
        self.register_buffer("shift", None if inputs is None else inputs[0])
        self.register_buffer("width", None if inputs is None else inputs[1])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs, in the order of `named`."""
        return tuple(self.named(*inputs).values())

    def named(self, *inputs: Tensor) -> dict[str, Tensor]:
        """The outputs by name."""
        if self.shift is not None and self.width is not None:
            first = (inputs[0] - self.shift.to(inputs[0])) / self.width.to(inputs[0])
            inputs = (first, *inputs[1:])
        return self._named(inputs)

    @abstractmethod
    def _named(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """The outputs for scaled inputs."""


class Plain(Called):
    """An ordinary network that puts out all it returns, by name."""

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Tensors by name; one without a name is called "output"."""
        out = returned(self.net, self._arranged(inputs))
        return parts_of(out if self.output is None else self.output(out))


class Single(Servable):
    """One network: its own output, called "output", or several by name."""

    def __init__(
        self,
        net: Plain,
        likelihood: Likelihood | None,
        report: Reported,
        inputs: tuple[Tensor, Tensor] | None,
    ) -> None:
        super().__init__(inputs)
        self.net, self.likelihood, self.report = net, likelihood, report

    def _named(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.net(*inputs)
        if self.report.unit is not None:  # a mean in the target's own unit
            (name, out), *_ = found.items()
            mean = out if self.likelihood is None else self.likelihood.moments(out)[0]
            found = {name: self.report.moved(mean)}
        return found


class Ensemble(Servable):
    """Draws of the network side by side in one graph, and what they say together."""

    def __init__(
        self,
        members: Sequence[Plain],
        likelihood: Likelihood | None,
        report: Reported,
        inputs: tuple[Tensor, Tensor] | None,
    ) -> None:
        super().__init__(inputs)
        self.members = nn.ModuleList(members)
        self.likelihood, self.report = likelihood, report

    def _named(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        said = [member(*inputs) for member in self.members]
        named: dict[str, Tensor] = {}
        for part in said[0]:
            outputs = torch.stack([one[part] for one in said])
            found = self.report(
                summarise(Draws.stacked(outputs, self.likelihood, keep=False), self.likelihood)
            )
            ahead = f"{part}_" if len(said[0]) > 1 else ""
            named |= {f"{ahead}{name}": value for name, value in found.items()}
        return named


class SamplingFree(Servable):
    """Means and covariances of the outputs, and the prediction made of them."""

    points: Tensor

    def __init__(
        self,
        network: MomentNetwork,
        likelihood: Likelihood | None,
        report: Reported,
        inputs: tuple[Tensor, Tensor] | None,
        outputs: int,
    ) -> None:
        super().__init__(inputs)
        self.network, self.likelihood, self.report = network, likelihood, report
        self.register_buffer("points", normal_points(outputs))

    def _named(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        mean, covariance = self.network(*inputs)
        with torch.no_grad():
            outputs = spread_out(mean, covariance, self.points)
            named: dict[str, Tensor] = self.report(
                summarise(Draws.stacked(outputs, self.likelihood, keep=False), self.likelihood)
            )
        return named


class Flat(nn.Module):
    """A function of tensors as a module of positional tensors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        """The function's result."""
        return self.function(*inputs)
