"""From a module to a program: torch.export, and ONNX through it, and the file run beside the module."""

import io
import json
import logging
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from kasuri.exporting.networks import Servable
from kasuri.prediction.moments.moment_network import MomentNetwork
from kasuri.prediction.moments.trace import ExportError, exported, quiet

if TYPE_CHECKING:
    from torch.export import ExportedProgram

aten = torch.ops.aten


def file_of(
    network: Servable,
    inputs: tuple[Tensor, ...],
    format: str,
    metadata: Mapping[str, str],
    labels: Sequence[str],
    outputs: Sequence[str],
) -> bytes:
    """The network as a file, with any batch size; labels are the names of its inputs."""
    module: nn.Module = network
    if isinstance(network.functions, MomentNetwork):
        module = _Flat(_with_backward(network, inputs))
    program = exported(module, inputs)
    if format == "onnx":
        return _onnx_bytes(program, metadata, labels, outputs)
    buffer = io.BytesIO()
    with quiet():
        torch.export.save(program, buffer, extra_files={"kasuri.json": json.dumps(dict(metadata))})
    return buffer.getvalue()


class _Flat(nn.Module):
    """A module as one of positional tensors."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def _with_backward(network: nn.Module, inputs: tuple[Tensor, ...]) -> nn.Module:
    """The network with its backward pass as operations like any others, for any batch size.

    torch's rules for derivatives of one example at a time make constants of the batch size. So two sizes are
    traced: numbers that differ grow with the batch.
    """
    # imported here: slow, and `import kasuri` needs none of it
    from torch.fx.experimental.proxy_tensor import make_fx

    table = torch.export.default_decompositions().items()
    # torch.onnx takes some derivatives apart only while it traces them itself
    rules = {op: rule for op, rule in table if "backward" in str(op)}
    few, more = 7, 11
    with quiet():
        module, other = (
            make_fx(network, rules)(*(part[torch.arange(size) % len(part)] for part in inputs))
            for size in (few, more)
        )
    graph = module.graph
    first, *_ = graph.find_nodes(op="placeholder")
    with graph.inserting_after(graph.find_nodes(op="placeholder")[-1]):
        batch = graph.call_function(aten.sym_size.int, (first, 0))
    pairs = [node for node in graph.nodes if node is not batch], other.graph.nodes
    for node, twin in zip(*pairs, strict=True):

        def grown(number: Any, larger: Any, node: Any = node) -> Any:
            if not isinstance(number, int) or number == larger:
                return number
            slope = (larger - number) // (more - few)
            with graph.inserting_before(node):
                product = graph.call_function(operator.mul, (batch, slope))
                return graph.call_function(operator.add, (product, number - slope * few))

        node.args, node.kwargs = tree_map(grown, (node.args, node.kwargs), (twin.args, twin.kwargs))
    for node in list(module.graph.nodes):  # nothing will be differentiated
        if node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0])
    # views of copies: strides that follow from others would be taken for conditions on the batch
    for node in list(module.graph.nodes):
        if node.target is aten.view.default:
            with module.graph.inserting_before(node):
                copy = module.graph.call_function(
                    aten.clone.default, node.args[:1], {"memory_format": torch.contiguous_format}
                )
            node.replace_input_with(node.args[0], copy)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _onnx_bytes(
    program: "ExportedProgram",
    metadata: Mapping[str, str],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> bytes:
    """The ONNX file, its description in metadata_props."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ExportError(
            f'format="onnx" needs {error.name}: pip install "kasuri[export]", or write format="torch"'
        ) from None
    # it notes which libraries are not installed, and not needed
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with quiet():
        program = program.run_decompositions(_OWN)
        try:
            written = torch.onnx.export(
                program,
                (),
                dynamo=True,
                input_names=list(inputs),
                output_names=[f"kasuri.{name}" for name in outputs],
                verbose=False,
                # looking for patterns takes minutes in a graph of thousands; onnxruntime does its own
                optimize=len(program.graph.nodes) < 1000,
            )
        except torch.onnx.OnnxExporterError as error:
            raise ExportError(
                f'torch cannot write this graph as ONNX: {_cause(error)}; write format="torch"'
            ) from error
    assert written is not None
    model = written.model_proto
    _rename(model.graph, {f"kasuri.{name}": name for name in outputs})
    model.producer_name, model.producer_version = "kasuri", metadata["kasuri.version"]
    for key, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    try:
        data: bytes = model.SerializeToString()
    except ValueError as error:
        raise ExportError(
            f"the ONNX file would be larger than its format allows (2 GB): {error}; fewer members are smaller"
        ) from error
    return data


def _cause(error: BaseException) -> str:
    """The first line of the error that all others come from."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).partition("\n")[0]


def _rename(graph: Any, wanted: Mapping[str, str]) -> None:
    """Give values their names, and the batch its; other values of these names get longer ones.

    Outputs that are the same for every batch have a first size of their own.
    """

    def renamed(name: str) -> str:
        return f"kasuri.inner.{name}" if name in wanted.values() else wanted.get(name, name)

    for node in graph.node:
        node.input[:] = [renamed(name) for name in node.input]
        node.output[:] = [renamed(name) for name in node.output]
    for values in (graph.initializer, graph.value_info, graph.output):
        for value in values:
            value.name = renamed(value.name)
    for value in (*graph.input, *graph.output):
        for size in value.type.tensor_type.shape.dim[:1]:
            if not size.HasField("dim_value"):
                size.dim_param = "batch"


def _convolution_backward(
    slope: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    """The derivative of a convolution in its input, as a transposed convolution, which ONNX has."""
    if transposed or wanted[1] or wanted[2]:
        return NotImplemented
    rest = [
        x.shape[dim + 2]
        - ((slope.shape[dim + 2] - 1) * stride[dim] - 2 * padding[dim])
        - dilation[dim] * (weight.shape[dim + 2] - 1)
        - 1
        for dim in range(len(stride))
    ]
    back = aten.convolution(slope, weight, None, stride, padding, dilation, True, rest, groups)
    return back, None, None


def _erf(x: Tensor) -> Any:
    """In single precision: onnxruntime has no other."""
    return aten.erf(x.float()).double() if x.dtype == torch.float64 else NotImplemented


def _gelu(x: Tensor, approximate: str = "none") -> Any:
    if x.dtype != torch.float64 or approximate != "none":
        return NotImplemented
    return 0.5 * x * (1 + aten.erf((x * math.sqrt(0.5)).float()).double())


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Any:
    if x.dtype != torch.float64:
        return NotImplemented
    return x.clamp(min=0) + torch.log1p((-(x * beta).abs()).exp()) / beta


_OWN = {  # what ONNX, or what runs it, has not
    aten.convolution_backward.default: _convolution_backward,
    aten.erf.default: _erf,
    aten.gelu.default: _gelu,
    aten.softplus.default: _softplus,
}


def largest_error(network: Servable, data: bytes, format: str, inputs: tuple[Tensor, ...]) -> float:
    """Largest difference of a file from its network, over batches as given, of one, and of more.

    Differences of values above 1 are relative.
    """
    runner = _onnx_runner(data) if format == "onnx" else _torch_runner(data)
    count = len(inputs[0])
    worst = 0.0
    for size in sorted({count, 1, count + 3}):
        rows = torch.arange(size) % count
        batch = tuple(part[rows] for part in inputs)
        with torch.no_grad():
            expected, found = network(*batch), runner(*batch)
        for mine, theirs in zip(expected, found, strict=True):
            if mine.shape != theirs.shape:
                raise ExportError(f"shapes {tuple(theirs.shape)} instead of {tuple(mine.shape)}")
            difference = (mine.double() - theirs.double()).abs() / mine.double().abs().clamp(min=1)
            worst = max(worst, float(difference.nan_to_num(math.inf).max()))
    return worst


def _onnx_runner(data: bytes) -> Callable[..., Sequence[Tensor]]:
    try:
        import onnxruntime
    except ImportError:
        raise ExportError(
            "the file is compared with PyTorch by onnxruntime, which is not installed: "
            'pip install "kasuri[export]"'
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors; it warns of constants that it computes every time
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def run(*inputs: Tensor) -> Sequence[Tensor]:
        fed = dict(zip(names, (part.numpy() for part in inputs), strict=True))
        return [torch.from_numpy(part) for part in session.run(None, fed)]

    return run


def _torch_runner(data: bytes) -> Callable[..., Sequence[Tensor]]:
    with quiet():
        return torch.export.load(io.BytesIO(data)).module()
