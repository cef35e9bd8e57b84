"""One pass through a graph: means and variances forward, or means alone with known variances."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from kasuri.prediction.moments import rules
from kasuri.prediction.moments.graph import Traced
from kasuri.prediction.moments.values import Gauss

Values = dict[fx.Node, Any]


@dataclass(frozen=True)
class Weights:
    """Means and variances of the weights, made once for many inputs."""

    constants: Mapping[str, Tensor]
    variances: Mapping[str, Tensor]

    @staticmethod
    def of(traced: Traced) -> "Weights":
        """Those of a graph's posteriors."""
        variances = {node: one.variance().detach() for node, one in traced.random.items()}
        return Weights(traced.constants, variances)


def forward(
    traced: Traced, weights: Weights, inputs: tuple[Tensor, ...]
) -> tuple[Values, str | None]:
    """The value of every node, and the first operation at which a variance was lost, if any."""
    given = dict(zip(traced.inputs, inputs, strict=True))
    lost: list[str] = []

    def place(node: fx.Node) -> Any:
        if node.name in given:
            return given[node.name]
        value, variance = weights.constants[node.name], weights.variances.get(node.name)
        return value if variance is None else Gauss(value, variance)

    def call(node: fx.Node, args: Any, kwargs: Any) -> Any:
        mean, variance = rules.apply(node.target, args, kwargs)
        if variance is None and _random_inside(args) and _holds_numbers(mean):
            lost.append(str(node.target))
        return _joined(mean, variance)

    return _run(traced.graph, place, call), (lost[0] if lost else None)


def again(
    traced: Traced,
    weights: Weights,
    inputs: tuple[Tensor, ...],
    known: Callable[[fx.Node], Any],
    tap: Callable[[fx.Node, Tensor], Tensor],
) -> Any:
    """The output's mean for other inputs, nonlinear operations smoothed by known variances.

    Args:
        traced: the graph.
        weights: of the graph; their means are used.
        inputs: of the network.
        known: the variance of a node's value, or None.
        tap: what to make of the value of a node.
    """
    given = dict(zip(traced.inputs, inputs, strict=True))

    def place(node: fx.Node) -> Any:
        return given[node.name] if node.name in given else weights.constants[node.name]

    def call(node: fx.Node, args: Any, kwargs: Any) -> Any:
        if rules.smooths(node.target):
            pairs = zip(node.args, args, strict=True)
            args = [
                Gauss(value, known(source)) if isinstance(source, fx.Node) else value
                for source, value in pairs
            ]
        value = rules.mean_only(node.target, args, kwargs)
        return tap(node, value) if isinstance(value, Tensor) else value

    return _run(traced.graph, place, call)[_output(traced.graph)]


def result(traced: Traced, values: Values) -> Any:
    """The network's output among the values of all nodes."""
    return values[_output(traced.graph)]


def _run(
    graph: fx.Graph, place: Callable[[fx.Node], Any], call: Callable[[fx.Node, Any, Any], Any]
) -> Values:
    values: Values = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = place(node)
        elif node.op == "output":
            (values[node],) = fx.map_arg(node.args[0], lambda one: values[one])
        elif node.target is not torch.ops.aten._assert_tensor_metadata.default:
            args, kwargs = (
                fx.map_arg(part, lambda one: values[one]) for part in (node.args, node.kwargs)
            )
            values[node] = call(node, args, kwargs)
    return values


def _output(graph: fx.Graph) -> fx.Node:
    return next(node for node in graph.nodes if node.op == "output")


def _joined(mean: Any, variance: Any) -> Any:
    if variance is None:
        return mean
    if isinstance(mean, list | tuple):
        pairs = zip(mean, variance, strict=True)
        return [_joined(one, two) for one, two in pairs]
    return Gauss(mean, variance)


def _random_inside(args: Any) -> bool:
    if isinstance(args, list | tuple):
        return any(_random_inside(one) for one in args)
    return isinstance(args, Gauss) and args.variance is not None


def _holds_numbers(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_holds_numbers(one) for one in value)
    return isinstance(value, Tensor) and value.is_floating_point()
