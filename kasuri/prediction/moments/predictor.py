"""The network that predicts means and covariances of its outputs, without a draw."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from kasuri.prediction.moments.graph import Traced, trace
from kasuri.prediction.moments.places import Place
from kasuri.prediction.moments.propagate import Weights, again, forward, result
from kasuri.prediction.moments.taps import Tap, covariance, find_taps
from kasuri.prediction.moments.values import Gauss, mean_of, variance_of

Covariance = Literal["full", "diagonal"]


def _taps(traced: Traced) -> tuple[list[Tap], ValueError | None]:
    """Where random weights enter, or why that cannot be linearised."""
    try:
        return find_taps(traced), None
    except ValueError as error:
        return [], error


class MomentNetwork(nn.Module):
    """Inputs to (mean, covariance) of the outputs under the posterior.

    Means and variances of independent numbers go forward through the graph. With "diagonal" that is all:
    the covariance is diagonal, and the result is variances. With "full" the network, its
    nonlinear operations smoothed by these variances, is linearised in its weights: J Σ Jᵀ, with one backward
    pass for each output, holds all that weights shared by positions and time steps, and layers
    one after the other, have in common.

    Args:
        bnn: a network from `bayesianize`.
        inputs: example inputs, batch first.
        kind: "full" or "diagonal".
        names: of inputs given by name.
        output: takes the tensor out of what the network returns.
    """

    def __init__(
        self,
        bnn: nn.Module,
        inputs: tuple[Tensor, ...],
        kind: Covariance = "full",
        names: tuple[str, ...] | None = None,
        output: Any = None,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.traced: Traced = trace(bnn, inputs, names, output)
        self.weights = Weights.of(self.traced)
        with torch.no_grad():
            _, lost = forward(self.traced, self.weights, inputs)
        taps, unlinear = _taps(self.traced)
        draws = "leave it out of the conversion, or use kasuri.predict with draws"
        if kind == "full" and unlinear is not None:
            other = 'write covariance="diagonal", ' if lost is None else ""
            raise ValueError(f"{unlinear}: {other}{draws}")
        if kind == "diagonal" and lost is not None:
            other = 'write covariance="full", which linearises the network there'
            raise ValueError(
                f'covariance="diagonal": there is no rule for the variance of {lost}: '
                f"{other if unlinear is None else draws}"
            )
        self.taps = taps if kind == "full" else []

    @property
    def outputs(self) -> int:
        """Number of outputs of an example."""
        return math.prod(self.traced.output_shape())

    def affordable(self, numbers: int) -> int:
        """How many examples at once keep derivatives in weights below so many numbers."""
        outputs = self.outputs if self.kind == "full" else 1
        sizes = [one.posterior.numel() for one in self.traced.random.values()]
        return max(1, min(1024, numbers // (outputs * max(sizes))))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means (batch, ...), and covariances (batch, O, O) of the O outputs or variances (batch, ...)."""
        with torch.no_grad():
            values, _ = forward(self.traced, self.weights, inputs)
        out = result(self.traced, values)
        mean = mean_of(out)
        if self.kind == "diagonal":
            variance = variance_of(out)
            return mean, torch.zeros_like(mean) if variance is None else variance
        return mean, self._covariance(inputs, mean, values)

    def _covariance(
        self, inputs: tuple[Tensor, ...], mean: Tensor, values: dict[Any, Any]
    ) -> Tensor:
        outputs = mean.shape[1:].numel()
        slopes = self._slopes(inputs, outputs, values)

        def means(node: fx.Node) -> Any:
            return mean_of(values[node])

        def variances(node: fx.Node) -> Any:
            value = values[node]
            return value.variance if isinstance(value, Gauss) else None

        with torch.no_grad():
            return covariance(self.traced, self.taps, slopes, means, variances)

    def _slopes(
        self, inputs: tuple[Tensor, ...], outputs: int, values: dict[Any, Any]
    ) -> list[Tensor]:
        """Derivatives of every output at every tap, (outputs, batch, ...): one copy of the batch each."""
        repeated = tuple(Place(0).repeat(one, outputs) for one in inputs)
        zeros: dict[fx.Node, Tensor] = {}
        places = {tap.node for tap in self.taps}

        def known(node: fx.Node) -> Any:
            value = values.get(node)
            if not isinstance(value, Gauss) or value.variance is None:
                return None
            place = self.traced.places.get(node)
            return value.variance if place is None else place.repeat(value.variance, outputs)

        def tap(node: fx.Node, value: Tensor) -> Tensor:
            if node not in places:
                return value
            zeros[node] = torch.zeros_like(value).requires_grad_()
            return value + zeros[node]

        with torch.enable_grad():
            out = again(self.traced, self.weights, repeated, known, tap)
            out = out.reshape(out.shape[0], -1)
            which = torch.eye(outputs, dtype=out.dtype, device=out.device)
            which = which.unsqueeze(1).expand(-1, inputs[0].shape[0], -1).flatten(0, 1)
            nodes = [one.node for one in self.taps]
            found = torch.autograd.grad(out, [zeros[node] for node in nodes], which)
        return [
            self.traced.place(node).split(slope).unflatten(0, (outputs, -1))
            for node, slope in zip(nodes, found, strict=True)
        ]
