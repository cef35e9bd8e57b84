"""A table of what a conversion did: what is Bayesian, what is not and why, and how many numbers."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from kasuri.network.random import conversion_of, full_name, named_posteriors, original_modules
from kasuri.network.select import is_norm


@dataclass(frozen=True)
class Row:
    """One parameter of the ordinary network."""

    name: str
    shape: tuple[int, ...]
    posterior: str | None
    parameters: int
    reason: str = ""


@dataclass(frozen=True)
class Summary:
    """What became Bayesian, what was left and why; print it, or read its fields.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(rank=1), bias=False)
        >>> kasuri.summary(bnn).parameters  # 6 means, 3 + 2 factors, 2 biases
        13
    """

    bayesian: tuple[Row, ...]
    left: tuple[Row, ...]

    @property
    def parameters(self) -> int:
        """Numbers that training changes: variational parameters plus ordinary ones."""
        return sum(row.parameters for row in (*self.bayesian, *self.left))

    @property
    def weights(self) -> int:
        """Random weights."""
        return sum(math.prod(row.shape) for row in self.bayesian)

    def __str__(self) -> str:
        """A table for people."""
        lines = [_line("Bayesian", "shape", "posterior", "parameters")]
        lines += [f"{_row(row, row.posterior)}  {row.reason}".rstrip() for row in self.bayesian]
        if self.left:
            lines += ["", _line("left as they are", "shape", "why", "parameters")]
            lines += [_row(row, row.reason) for row in self.left]
        lines += ["", f"{self.weights:,} random weights; {self.parameters:,} parameters to train"]
        return "\n".join(lines)


def summary(net: nn.Module) -> Summary:
    """What is Bayesian in a network, what is not and why, with parameter counts."""
    bayesian = tuple(
        Row(name, tuple(q.shape), type(q).__name__, sum(p.numel() for p in q.parameters()), q.note)
        for name, q in named_posteriors(net)
    )
    return Summary(bayesian, tuple(_left(net)))


def _left(net: nn.Module) -> Iterator[Row]:
    seen: set[int] = set()
    for path, module in original_modules(net):
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:  # tied parameters are one
                continue
            seen.add(id(parameter))
            trained = parameter.numel() if parameter.requires_grad else 0
            reason = _reason(module, parameter)
            yield Row(full_name(path, name), tuple(parameter.shape), None, trained, reason)


def _reason(module: nn.Module, parameter: nn.Parameter) -> str:
    if not parameter.requires_grad:
        return "frozen"
    if is_norm(module):
        return "norm layer"
    conversion = conversion_of(module)
    converted = conversion is not None and bool(conversion.views)
    return "bias=False" if converted and parameter.dim() < 2 else "not chosen"


def _row(row: Row, third: str | None) -> str:
    shape = "x".join(map(str, row.shape)) or "1"
    return _line(row.name, shape, third or "", f"{row.parameters:,}")


def _line(name: str, shape: str, third: str, count: str) -> str:
    return f"{name:<38} {shape:>16}  {third:<28} {count:>12}"
