"""The network that predicts means and covariances of its outputs, without a draw."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, fx, nn

from kasuri.prediction.moments.linearise import Tap, Use, directions, find_taps, per_feature
from kasuri.prediction.moments.operations import Gauss, apply, mean_of
from kasuri.prediction.moments.points import normal_points, spread_out
from kasuri.prediction.moments.trace import Traced, trace
from kasuri.prediction.predict import Output


class MomentNetwork(nn.Module):
    """Inputs to points (S, batch, ...) that stand for the outputs under the posterior, taken as normal.

    Means and variances of independent numbers go forward through the graph. Then the network, its
    nonlinear operations smoothed by these variances, is linearised in its weights: J Σ Jᵀ, with one backward
    pass for each output, holds all that weights shared by positions and time steps, and layers
    one after the other, have in common.
    """

    points: Tensor

    def __init__(
        self,
        bnn: nn.Module,
        inputs: tuple[Tensor, ...],
        names: tuple[str, ...] | None = None,
        output: Output = None,
    ) -> None:
        super().__init__()
        self.traced: Traced = trace(bnn, inputs, names, output)
        self.variances = {node: weight.variance() for node, weight in self.traced.random.items()}
        self.taps: list[Tap] = find_taps(self.traced)
        first = tuple(part[:1] for part in inputs)
        with torch.no_grad():
            values = self._run(first)
        self.outputs = mean_of(values[self._output]).numel()
        self.register_buffer("points", normal_points(self.outputs))
        # results of taps for a batch of one: what is added to them, nothing, is what slopes are taken in
        self.zeros = {tap.node: torch.zeros_like(mean_of(values[tap.node])) for tap in self.taps}

    @property
    def _output(self) -> fx.Node:
        return next(node for node in self.traced.graph.nodes if node.op == "output")

    def affordable(self, numbers: int) -> int:
        """How many examples at once keep derivatives in weights below so many numbers."""
        sizes = [weight.posterior.numel() for weight in self.traced.random.values()]
        return max(1, min(1024, numbers // (self.outputs * max(sizes))))

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """The points, under the name of the output."""
        return {"output": spread_out(*self.moments(*inputs), self.points)}

    def moments(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means (batch, ...), and covariances (batch, O, O) of the O outputs."""
        with torch.no_grad():
            mean, derivatives, covariance = torch.vmap(self._linearised, randomness="different")(
                *inputs
            )
            for name, derivative in derivatives.items():
                posterior = self.traced.random[name].posterior
                flat = derivative.reshape(-1, *posterior.shape)
                pulled = posterior.pull(flat).unflatten(0, derivative.shape[:2])
                covariance = covariance + pulled @ pulled.mT
        return mean, covariance

    def _linearised(self, *inputs: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """(mean, derivatives in random weights, the rest of the covariance) of one example."""
        rows = tuple(part.unsqueeze(0) for part in inputs)

        def outputs(shifts: list[Tensor]) -> Any:
            shift = dict(zip(self.zeros, shifts, strict=True))
            values = self._run(rows, shift)
            mean = mean_of(values[self._output])[0]
            return mean.reshape(-1), (mean, [values[tap.source] for tap in self.taps])

        zeros = list(self.zeros.values())
        linearised: Any = torch.func.vjp(outputs, zeros, has_aux=True)
        _, pull_back, (mean, sources) = linearised
        basis = torch.eye(self.outputs, dtype=mean.dtype, device=mean.device)
        (slopes,) = torch.vmap(pull_back)(basis)
        uses = [
            Use(tap, source, per_feature(tap, slope))
            for tap, source, slope in zip(self.taps, sources, slopes, strict=True)
        ]
        derivatives, rest = directions(uses, self.traced.random, self.variances)
        return mean, derivatives, rest

    def _run(
        self,
        inputs: tuple[Tensor, ...],
        shifts: Mapping[fx.Node, Tensor] = MappingProxyType({}),
    ) -> dict[fx.Node, Any]:
        """The value of every node: a Gauss where a variance is known, otherwise a tensor.

        `shifts` are added to the means of taps.
        """
        given = {**self.traced.constants, **dict(zip(self.traced.inputs, inputs, strict=True))}
        values: dict[fx.Node, Any] = {}
        for node in self.traced.graph.nodes:
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            if node.op == "placeholder":
                value: Any = given[node.name]
                if node.name in self.variances:
                    value = Gauss(value, self.variances[node.name])
            elif node.op == "output":
                (value,) = args[0]
            elif node.target is torch.ops.aten._assert_tensor_metadata.default:
                continue
            else:
                value = apply(node.target, args, kwargs)
                if node in shifts:
                    value = Gauss(value.mean + shifts[node], value.variance)
            values[node] = value
        return values
