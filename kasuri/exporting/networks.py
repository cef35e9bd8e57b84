"""The networks that are exported: modules from positional tensors to named tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kasuri.likelihoods import Likelihood
from kasuri.likelihoods.predictions import ClassPrediction, Draws, moments
from kasuri.prediction.moments.moment_network import MomentNetwork
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


class Members(nn.Module):
    """Draws of a network side by side in one graph: their outputs (S, batch, ...) by name."""

    def __init__(self, members: Sequence[Positional]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        outputs = [member(*inputs) for member in self.members]
        return {name: torch.stack([parts[name] for parts in outputs]) for name in outputs[0]}


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
        functions: Positional | Members | MomentNetwork,
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
        if not isinstance(self.functions, Positional):
            summaries = {name: self._summary(fs) for name, fs in outputs.items()}
            if len(summaries) == 1:
                return next(iter(summaries.values()))
            return {
                f"{name}_{word}": part
                for name, summary in summaries.items()
                for word, part in summary.items()
            }
        if self.targets is None:
            return outputs
        ((name, out),) = outputs.items()
        return {name: self.targets.restored(moments(out, self.likelihood)[0])}

    def _summary(self, fs: Tensor) -> dict[str, Tensor]:
        """What outputs (S, batch, ...) of S functions say together."""
        draws = Draws(keep=False)
        draws.add(fs, self.likelihood)
        prediction = summarise(draws, self.likelihood)
        words: tuple[str, ...] = ("mean", "std")
        if isinstance(prediction, ClassPrediction):
            words += ("entropy", "mutual_information")
        elif self.likelihood is not None:
            words += ("aleatoric", "epistemic")
        parts = {word: getattr(prediction, word) for word in words}
        if self.targets is None:
            return parts
        powers = {"std": 1, "aleatoric": 2, "epistemic": 2}
        spreads = {word: self.targets.spread(parts[word], powers[word]) for word in words[1:]}
        return {"mean": self.targets.restored(parts["mean"])} | spreads
