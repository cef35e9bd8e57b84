"""The networks that are exported: modules from positional tensors to named tensors."""

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
        raise TypeError(
            f"export: the network returned {', '.join(others) or 'nothing'}; the outputs of a file are "
            "tensors. Say which part to export: output=lambda out: out[0] or output=lambda out: out.logits"
        )
    return parts


class Plain(Positional):
    """An ordinary network: all the tensors it returns, by name; one without a name is "output"."""

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        return parts_of(self.returned(*inputs))


class Members(nn.Module):
    """Draws of a network side by side in one graph: their outputs (S, batch, ...) by name."""

    def __init__(self, members: Sequence[Plain]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        outputs = [member(*inputs) for member in self.members]
        return {name: torch.stack([parts[name] for parts in outputs]) for name in outputs[0]}


class SamplingFree(nn.Module):
    """Points (S, batch, ...) that stand for the normal output that moments say."""

    points: Tensor

    def __init__(self, network: MomentNetwork) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("points", normal_points(network.outputs))

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        mean, covariance = self.network(*inputs)
        return {"output": spread_out(mean, covariance, self.points)}


class Servable(nn.Module):
    """Inputs as they come to named outputs, both in their own units.

    Args:
        functions: gives the outputs of one function, or of several to be summarised.
        likelihood: what they mean.
        inputs: of the first input, which is standardised inside, or None.
        targets: of the targets, or None.
    """

    def __init__(
        self,
        functions: Plain | Members | SamplingFree,
        likelihood: Likelihood | None,
        inputs: Scale | None,
        targets: Scale | None,
    ) -> None:
        super().__init__()
        self.functions, self.likelihood = functions, likelihood
        self.inputs, self.targets = inputs, targets

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs, in the order of `named`."""
        return tuple(self.named(*inputs).values())

    def named(self, *inputs: Tensor) -> dict[str, Tensor]:
        """The outputs by name."""
        if self.inputs is not None:
            inputs = (self.inputs.standardised(inputs[0]), *inputs[1:])
        outputs: dict[str, Tensor] = self.functions(*inputs)
        if not isinstance(self.functions, Plain):
            named: dict[str, Tensor] = {}
            for name, fs in outputs.items():
                prefix = f"{name}_" if len(outputs) > 1 else ""
                named |= {f"{prefix}{word}": part for word, part in self._summary(fs).items()}
            return named
        if self.targets is None:
            return outputs
        ((name, out),) = outputs.items()
        return {name: self.targets.restored(moments(out, self.likelihood)[0])}

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
            name: unit.spread(part, powers[name]) for name, part in statistics.items()
        }
