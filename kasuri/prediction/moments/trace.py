"""The graph of a converted network: what torch.export sees of its mean, and which weights are random."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from kasuri.checks import described, first_line
from kasuri.inputs import call, count, tensors
from kasuri.network.convert import collapse
from kasuri.network.random import named_layers, posterior_of
from kasuri.network.views import View
from kasuri.posteriors.base import Posterior
from kasuri.prediction.predict import Output

aten = torch.ops.aten
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class ExportError(RuntimeError):
    """A network that cannot be exported, or an export that does not compute what the network does."""


def positional(x: Any) -> tuple[tuple[str, ...] | None, tuple[Tensor, ...]]:
    """(names of named inputs, all inputs in their order)."""
    names, parts = tuple(x) if isinstance(x, Mapping) else None, tuple(tensors(x))
    if not parts or not all(isinstance(part, Tensor) and part.dim() for part in parts):
        raise TypeError(
            f"inputs must be a tensor, a tuple or a mapping of tensors, batch first, got {type(x).__name__}"
        )
    if not count(parts) or not all(part.numel() for part in parts):
        raise ValueError(f"inputs must not be empty, got {described(*parts)}")
    return names, parts


class Positional(nn.Module):
    """A network whose inputs, named or not, come by position, and whose outputs have names."""

    def __init__(
        self, net: nn.Module, names: tuple[str, ...] | None = None, output: Output = None
    ) -> None:
        super().__init__()
        self.net, self.names, self.output = net, names, output

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        return parts_of(self.returned(*inputs))

    def returned(self, *inputs: Tensor) -> Any:
        """What the network returns, or what `output` takes out of it."""
        x = inputs if self.names is None else dict(zip(self.names, inputs, strict=True))
        out = call(self.net, x)
        return out if self.output is None else self.output(out)

    def tried(self, *inputs: Tensor) -> dict[str, Tensor]:
        """The outputs for an example; errors are said before torch.export says them at length."""
        try:
            with torch.no_grad():
                out = self.returned(*inputs)
        except Exception as error:
            raise ValueError(
                f"the network does not run on a batch of inputs, {described(*inputs)}: {first_line(error)}; "
                "give inputs as the network takes them"
            ) from error
        return parts_of(out)


def parts_of(out: Any) -> dict[str, Tensor]:
    """What a network returned, by name: its own names if it has any; one without a name is "output".

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
            f"the network returned {', '.join(others) or 'nothing'}; outputs must be tensors. Say which part "
            "is meant: output=lambda out: out[0] or output=lambda out: out.logits"
        )
    return parts


def single(parts: Mapping[str, Tensor]) -> Tensor:
    """The only output; refuse several where one is meant."""
    if len(parts) > 1:
        raise ValueError(
            f"the network returns {', '.join(map(repr, parts))}, but moments, a likelihood and a target's "
            "unit belong to a single output. Say to which one, e.g. output=lambda out: out[0] or "
            "output=lambda out: out.logits"
        )
    (part,) = parts.values()
    return part


@dataclass(frozen=True)
class RandomWeight:
    """A random weight of the graph."""

    name: str  # in the ordinary network
    posterior: Posterior
    view: View  # from the layer's layout to the matrix; it knows a row of an embedding that is not random

    def variance(self) -> Tensor:
        """Variances in the layer's layout."""
        return self.view.tensor(self.without_padding(self.posterior.variance.detach()))

    def without_padding(self, matrix: Tensor) -> Tensor:
        """The matrix (..., rows, columns) with 0 in the row that is not random."""
        if self.view.padding is None:
            return matrix
        rows = torch.arange(matrix.shape[-2], device=matrix.device) != self.view.padding
        return matrix * rows.to(matrix.dtype).unsqueeze(-1)


@dataclass(frozen=True)
class Traced:
    """A network's graph; recurrent layers are unrolled."""

    graph: fx.Graph
    constants: Mapping[str, Tensor]  # by the name of their node
    random: Mapping[str, RandomWeight]  # which of them are means of random weights
    inputs: tuple[str, ...]  # names of their nodes


def trace(
    bnn: nn.Module,
    inputs: tuple[Tensor, ...],
    names: tuple[str, ...] | None = None,
    output: Output = None,
) -> Traced:
    """The graph of a converted network's mean, with any batch size."""
    plain = Positional(collapse(bnn, seed=0), names, output).eval().requires_grad_(False)
    single(plain.tried(*inputs))
    program = exported(plain, inputs)
    table = torch.export.default_decompositions().items()
    with quiet():
        rules = {op: rule for op, rule in table if _is_recurrent(op)}
        rules[aten.scaled_dot_product_attention.default] = _attention
        rules[aten._native_batch_norm_legit_no_training.default] = _batch_norm
        program = program.run_decompositions(rules)
    signature = program.graph_signature
    targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    targets |= signature.inputs_to_lifted_tensor_constants
    values = {**program.state_dict, **program.constants}
    weights = {f"net.{weight.name}": weight for weight in _random_weights(bnn)}
    random = {node: weights[name] for node, name in targets.items() if name in weights}
    constants = {node: values[name].detach() for node, name in targets.items()}
    return Traced(program.graph, constants, random, tuple(signature.user_inputs))


def _is_recurrent(op: Any) -> bool:
    return str(op).removeprefix("aten.").partition(".")[0] in _RECURRENT


def _batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """With the statistics of training: a gain and a shift for each channel."""
    gain = (variance + eps).rsqrt() * (1 if weight is None else weight)
    shift = (0 if bias is None else bias) - mean * gain
    gain, shift = (part.reshape([-1, *[1] * (x.dim() - 2)]) for part in (gain, shift))
    return x * gain + shift, x.new_zeros(0), x.new_zeros(0)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Tensor:
    """Softmax of scaled products, spelt out in operations that have rules."""
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -math.inf)
    return (scores if mask is None else scores + mask).softmax(-1) @ value


def _random_weights(bnn: nn.Module) -> Iterator[RandomWeight]:
    for prefix, layer, conversion in named_layers(bnn):
        for parameter, view in conversion.views.items():
            name = f"{prefix}.{parameter}" if prefix else parameter
            yield RandomWeight(name, posterior_of(layer, parameter), view)


def exported(module: nn.Module, inputs: tuple[Tensor, ...]) -> "torch.export.ExportedProgram":
    """torch.export of a module of positional tensors (`forward(*inputs)`), with any batch size."""
    if len(inputs[0]) == 1:  # torch takes a size of 1 for a constant
        inputs = tuple(torch.cat([part, part]) for part in inputs)
    batch = torch.export.Dim("batch")
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(
                module, inputs, dynamic_shapes=(tuple({0: batch} for _ in inputs),), strict=False
            )
    except (RuntimeError, torch._dynamo.exc.UserError) as error:
        raise ExportError(
            "torch.export cannot make a graph of this network, which may have an `if` on the values of a "
            f"tensor, or the batch size as a number. kasuri.predict needs no graph.\n{error}"
        ) from error


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
