"""What an exported graph puts out: a prediction's words as named tensors, in the target's own unit."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.likelihoods.predictions import ClassPrediction, Prediction, RealPrediction


@dataclass(frozen=True)
class Units:
    """target = mean + scale · (what the network predicts).

    Args:
        mean: of the targets before they were standardised.
        scale: their standard deviation.
    """

    mean: Tensor
    scale: Tensor

    @staticmethod
    def of(mean: float | Tensor, scale: float | Tensor) -> "Units | None":
        """The units, None if they change nothing."""
        units = Units(*(torch.as_tensor(one, dtype=torch.float64) for one in (mean, scale)))
        if not bool((units.scale > 0).all()):
            raise ValueError(f"target_scale={scale}: the unit of the targets is positive")
        return None if bool((units.mean == 0).all() and (units.scale == 1).all()) else units


class OutputError(TypeError):
    """A network returned what no file can put out."""


def parts_of(out: Any) -> dict[str, Tensor]:
    """What a network returned, by name: its own names if it has any.

    Examples:
        >>> sorted(parts_of((torch.zeros(2), None, torch.ones(2))))
        ['output_0', 'output_2']
    """
    named: Iterable[tuple[Any, Any]]
    if isinstance(out, Tensor):
        return {"output": out}
    if isinstance(out, Mapping):
        named = out.items()
    elif isinstance(out, tuple | list):
        names = getattr(out, "_fields", [f"output_{index}" for index in range(len(out))])
        named = zip(names, out, strict=True)
    else:
        named = [("output", out)]
    found = {str(name): one for name, one in named if one is not None}
    strange = {
        name: type(one).__name__ for name, one in found.items() if not isinstance(one, Tensor)
    }
    if strange or not found:
        listed = ", ".join(f"{kind} {name!r}" for name, kind in strange.items()) or "nothing"
        raise OutputError(
            f"export: the network returned {listed}; a file puts out tensors. Say which part it should "
            "put out, e.g. output=lambda out: out[0] or output=lambda out: out.logits"
        )
    return found


class Reported(nn.Module):
    """A prediction as a tuple of tensors, `names` in order.

    Classes: mean and std of the probabilities over members, entropy of the mean, mutual information. Real
    targets: mean, std with noise and weights together, and their variances apart, aleatoric and
    epistemic. Without a likelihood: mean and std.
    """

    unit: Tensor | None
    zero: Tensor | None

    def __init__(self, units: Units | None) -> None:
        super().__init__()
        self.register_buffer("unit", None if units is None else units.scale)
        self.register_buffer("zero", None if units is None else units.mean)

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        """The tensors by name."""
        if isinstance(prediction, ClassPrediction):
            return {
                "mean": prediction.mean,
                "std": prediction.std,
                "entropy": prediction.entropy,
                "mutual_information": prediction.mutual_information,
            }
        assert isinstance(prediction, RealPrediction)
        found = {"mean": self.moved(prediction.mean), "std": self.stretched(prediction.std)}
        if prediction.moments.noise is not None:
            found["aleatoric"] = self.stretched(prediction.aleatoric, 2)
            found["epistemic"] = self.stretched(prediction.epistemic, 2)
        return found

    def moved(self, value: Tensor) -> Tensor:
        """A value in the target's own unit."""
        if self.unit is None or self.zero is None:
            return value
        return value * self.unit.to(value) + self.zero.to(value)

    def stretched(self, value: Tensor, power: int = 1) -> Tensor:
        """A standard deviation, or with power 2 a variance, in the target's own unit."""
        return value if self.unit is None else value * self.unit.to(value) ** power
