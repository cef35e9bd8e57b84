"""The networks that are exported: modules from positional tensors to named tensors."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.likelihoods import Likelihood
from kasuri.likelihoods.predictions import ClassPrediction, Draws, RealPrediction, moments
from kasuri.prediction.moments.moment_network import MomentNetwork
from kasuri.prediction.moments.points import normal_points, spread_out
from kasuri.prediction.moments.trace import Positional
from kasuri.prediction.predict import summarise


class Scale(nn.Module):
    """value = mean + scale · (standardised value)."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)

    def standardised(self, value: Tensor) -> Tensor:
        """The value in units of the scale."""
        return (value - self.mean.to(value)) / self.scale.to(value)

    def restored(self, value: Tensor) -> Tensor:
        """The value in its own unit."""
        return self.spread(value) + self.mean.to(value)

    def spread(self, value: Tensor, power: int = 1) -> Tensor:
        """A standard deviation (power 1) or a variance (2) in its own unit."""
        return value * self.scale.to(value) ** power


class OutputError(TypeError):
    """A network returned something that cannot be the output of a file."""


def parts_of(out: Any) -> dict[str, Tensor]:
    """What a network returned, by name: its own names if it has any.

    Examples:
        >>> sorted(parts_of((torch.zeros(2), None, torch.ones(2))))
        ['output_0', 'output_2']
    """
    named: Iterable[tuple[Any, Any]] = [("output", out)]
    if isinstance(out, Mapping):
        named = out.items()
    elif isinstance(out, tuple | list):
        names = getattr(out, "_fields", [f"output_{index}" for index in range(len(out))])
        named = zip(names, out, strict=True)
    parts = {str(name): part for name, part in named if part is not None}
    others = [
        f"{type(part).__name__} {name!r}"
        for name, part in parts.items()
        if not isinstance(part, Tensor)
    ]
    if others or not parts:
        raise OutputError(
            f"export: the network returned {', '.join(others) or 'nothing'}; the outputs of a file are "
            "tensors. Say which part to export: output=lambda out: out[0] or output=lambda out: out.logits"
        )
    return parts


class Plain(Positional):
    """An ordinary network, whose outputs are all the tensors it returns, by name."""

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Tensors by name; one without a name is called "output"."""
        return parts_of(self.returned(*inputs))


class Servable(nn.Module, ABC):
    """Inputs as they come to named outputs, both in their own units.

    Args:
        likelihood: what the network's outputs mean.
        inputs: of the first input, which is standardised inside, or None.
        targets: of the targets, or None.
    """

    def __init__(
        self, likelihood: Likelihood | None, inputs: Scale | None, targets: Scale | None
    ) -> None:
        super().__init__()
        self.likelihood, self.inputs, self.targets = likelihood, inputs, targets

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs, in the order of `named`."""
        return tuple(self.named(*inputs).values())

    def named(self, *inputs: Tensor) -> dict[str, Tensor]:
        """The outputs by name."""
        if self.inputs is not None:
            inputs = (self.inputs.standardised(inputs[0]), *inputs[1:])
        return self._named(inputs)

    @abstractmethod
    def _named(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """The outputs for scaled inputs."""

    def _summary(self, fs: Tensor) -> dict[str, Tensor]:
        """The summary of outputs (S, batch, ...) of S functions.

        Classes: mean and std of the probabilities over members, entropy of the mean, mutual information. Real
        targets: mean, std with noise and weights together, and their variances apart, aleatoric and
        epistemic. Without a likelihood: mean and std.
        """
        draws = Draws(keep=False)
        draws.add(fs, self.likelihood)
        prediction = summarise(draws, self.likelihood)
        if isinstance(prediction, ClassPrediction):
            names = ("mean", "std", "entropy", "mutual_information")
            return {name: getattr(prediction, name) for name in names}
        assert isinstance(prediction, RealPrediction)
        statistics = {"mean": prediction.mean, "std": prediction.std}
        if prediction.has_density:
            statistics |= {"aleatoric": prediction.aleatoric, "epistemic": prediction.epistemic}
        if (unit := self.targets) is None:
            return statistics
        mean = unit.restored(statistics.pop("mean"))
        powers = {"std": 1, "aleatoric": 2, "epistemic": 2}
        return {"mean": mean} | {
            name: unit.spread(statistics[name], powers[name]) for name in statistics
        }


class Single(Servable):
    """One network: its own output, called "output", or several by name."""

    def __init__(self, net: Plain, *units: Any) -> None:
        super().__init__(*units)
        self.net = net

    def _named(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = self.net(*inputs)
        if self.targets is None:
            return outputs
        ((name, out),) = outputs.items()
        return {name: self.targets.restored(moments(out, self.likelihood)[0])}


class Ensemble(Servable):
    """Draws of the network side by side in one graph, and the summary of their outputs."""

    def __init__(self, members: Sequence[Plain], *units: Any) -> None:
        super().__init__(*units)
        self.members = nn.ModuleList(members)

    def _named(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        outputs = [member(*inputs) for member in self.members]
        named: dict[str, Tensor] = {}
        for name in outputs[0]:
            summary = self._summary(torch.stack([parts[name] for parts in outputs]))
            prefix = f"{name}_" if len(outputs[0]) > 1 else ""
            named |= {f"{prefix}{word}": value for word, value in summary.items()}
        return named


class SamplingFree(Servable):
    """Means and covariances of the outputs, and the prediction made of them."""

    points: Tensor

    def __init__(self, network: MomentNetwork, *units: Any) -> None:
        super().__init__(*units)
        self.network = network
        self.register_buffer("points", normal_points(network.outputs))

    def _named(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        mean, covariance = self.network(*inputs)
        with torch.no_grad():
            return self._summary(spread_out(mean, covariance, self.points))
