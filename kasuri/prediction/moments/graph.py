"""The graph of a converted network: what torch.export sees of its mean, and which weights are random."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn

from kasuri.checks import described, told
from kasuri.inputs import run
from kasuri.network.convert import collapse
from kasuri.network.random import named_layers, posterior_of
from kasuri.network.views import View
from kasuri.posteriors.base import Posterior
from kasuri.prediction.moments.places import Place, find_places

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class TraceError(RuntimeError):
    """A network of which torch.export makes no graph."""


class Called(nn.Module):
    """A network whose inputs, named or not, come by position.

    Args:
        net: any network.
        names: names of its inputs, if they are given by name.
        output: takes the tensor out of what the network returns.
    """

    def __init__(
        self,
        net: nn.Module,
        names: tuple[str, ...] | None = None,
        output: Callable[[Any], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.net, self.names, self.output = net, names, output

    def arranged(self, inputs: tuple[Tensor, ...]) -> Any:
        """The inputs as the network takes them."""
        return inputs if self.names is None else dict(zip(self.names, inputs, strict=True))


class Wrapped(Called):
    """A network as a function of tensors alone, with one output."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """The network's output tensor."""
        return run(self.net, self.arranged(inputs), self.output)


@dataclass(frozen=True)
class Random:
    """A random weight of the graph.

    Args:
        name: in the ordinary network.
        posterior: of the weight as a matrix.
        view: from the layer's layout to the matrix.
        padding: the row of an embedding that is not random.
    """

    name: str
    posterior: Posterior
    view: View
    padding: int | None

    def variance(self) -> Tensor:
        """Variances in the layer's layout."""
        variance = self.view.tensor(self.posterior.variance)
        if self.padding is None:
            return variance
        rows = torch.arange(len(variance), device=variance.device) != self.padding
        return variance * rows.to(variance.dtype).unsqueeze(-1)


@dataclass(frozen=True)
class Traced:
    """A network's graph.

    Args:
        graph: calls of torch operations; recurrent layers are unrolled.
        constants: tensors of the graph by the name of their node.
        random: which of them are means of random weights.
        inputs: names of the nodes for inputs.
    """

    graph: fx.Graph
    constants: Mapping[str, Tensor]
    random: Mapping[str, Random]
    inputs: tuple[str, ...]

    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output for one example."""
        (last,) = next(node for node in self.graph.nodes if node.op == "output").args[0]
        return tuple(map(int, last.meta["val"].shape[1:]))

    @cached_property
    def places(self) -> Mapping[fx.Node, Place]:
        """Where examples are counted, for every node whose value has a batch."""
        return find_places(self.graph, self.inputs[0])

    def place(self, node: fx.Node) -> Place:
        """Where examples are counted in a value that depends on them."""
        if node in self.places:
            return self.places[node]
        raise ValueError(
            f"{node.name}: a random weight enters where examples cannot be told apart; use "
            "kasuri.predict with draws"
        )


def trace(
    bnn: nn.Module, inputs: tuple[Tensor, ...], names: tuple[str, ...] | None, output: Any = None
) -> Traced:
    """The graph of a converted network's mean, with any batch size.

    Args:
        bnn: a network from `bayesianize`.
        inputs: example inputs, batch first.
        names: of inputs given by name.
        output: takes the tensor out of what the network returns.
    """
    plain = Wrapped(collapse(bnn, seed=0), names, output).eval().requires_grad_(False)
    _check(plain, inputs)
    try:
        program = exported(plain, inputs)
    except (RuntimeError, torch._dynamo.exc.UserError) as error:
        raise TraceError(
            "torch.export cannot make a graph of this network; what it says is below. Usual reasons are an "
            "`if` on the values of a tensor and a batch size used as a number. kasuri.predict draws weights "
            f"instead, and needs no graph.\n{error}"
        ) from error
    table = torch.export.default_decompositions()
    recurrent = {op: rule for op, rule in table.items() if _is_recurrent(op)}
    with quiet():
        program = program.run_decompositions(recurrent)
    signature = program.graph_signature
    targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    targets |= signature.inputs_to_lifted_tensor_constants
    tensors = {**program.state_dict, **program.constants}
    found = dict(_random(bnn))
    random = {
        node: found[name.removeprefix("net.")]
        for node, name in targets.items()
        if name.removeprefix("net.") in found
    }
    constants = {node: tensors[name].detach() for node, name in targets.items()}
    return Traced(program.graph, constants, random, tuple(signature.user_inputs))


def _check(net: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Refuse inputs that the network does not run on, before torch.export says so at length."""
    try:
        with torch.no_grad():
            net(*inputs)
    except Exception as error:
        raise ValueError(
            f"the network does not run on its inputs, {described(*inputs)} ({told(error)}); give a batch of "
            "them"
        ) from error


def _is_recurrent(op: Any) -> bool:
    return str(op).removeprefix("aten.").partition(".")[0] in _RECURRENT


def _random(bnn: nn.Module) -> Iterator[tuple[str, Random]]:
    for prefix, layer, conversion in named_layers(bnn):
        for parameter, view in conversion.views.items():
            name = f"{prefix}.{parameter}" if prefix else parameter
            yield name, Random(name, posterior_of(layer, parameter), view, view.padding)


def exported(module: nn.Module, inputs: tuple[Tensor, ...]) -> "torch.export.ExportedProgram":
    """torch.export of a module of positional tensors (`forward(*inputs)`), with any batch size."""
    if len(inputs[0]) == 1:  # torch takes a size of 1 for a constant
        inputs = tuple(torch.cat([one, one]) for one in inputs)
    batch = torch.export.Dim("batch")
    with quiet(), torch.no_grad():
        return torch.export.export(
            module, inputs, dynamic_shapes=(tuple({0: batch} for _ in inputs),), strict=False
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings that torch.export gives about torch's own code."""
    with warnings.catch_warnings():
        for message, category in (
            (r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning),
            (r"The tensor attributes? .*_flat_weights.* assigned during export", UserWarning),
            # weights in channels-last layout; they are on the CPU, and the file is compared afterwards
            ("No complete tensor found in the group", UserWarning),
        ):
            warnings.filterwarnings("ignore", message, category)
        yield
