"""An exported file run beside the network it was made of."""

import io
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kasuri.export.networks import Servable
from kasuri.export.programs import ExportError
from kasuri.prediction.moments.trace import quiet

Runner = Callable[[tuple[Tensor, ...]], Sequence[Tensor]]


def onnx_runner(data: bytes) -> Runner:
    """The file, run by onnxruntime."""
    try:
        import onnxruntime
    except ImportError:
        raise ExportError(
            'verify=True compares with onnxruntime, which is not installed: pip install "kasuri[export]", '
            "or write verify=False"
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = (
        3  # errors; it warns of every constant that it does not compute beforehand
    )
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(inputs: tuple[Tensor, ...]) -> Sequence[Tensor]:
        fed = dict(zip(names, (one.numpy() for one in inputs), strict=True))
        return [torch.from_numpy(one) for one in session.run(None, fed)]

    return run


def torch_runner(data: bytes) -> Runner:
    """The file, run by torch."""
    with quiet():
        module = torch.export.load(io.BytesIO(data)).module()

    def run(inputs: tuple[Tensor, ...]) -> Sequence[Tensor]:
        with torch.no_grad():
            return module(*inputs)

    return run


def largest_error(network: Servable, runner: Runner, inputs: tuple[Tensor, ...]) -> float:
    """Largest difference, relative to values above 1, over batches as given, of one, and of more."""
    count = len(inputs[0])
    worst = 0.0
    for size in sorted({count, 1, count + 3}):
        rows = torch.arange(size) % count
        batch = tuple(one[rows] for one in inputs)
        with torch.no_grad():
            expected = network(*batch)
        for mine, theirs in zip(expected, runner(batch), strict=True):
            if mine.shape != theirs.shape:
                raise ExportError(f"shapes {tuple(theirs.shape)} instead of {tuple(mine.shape)}")
            away = (mine.double() - theirs.double()).abs() / mine.double().abs().clamp(min=1)
            worst = max(worst, float(away.max())) if not away.isnan().any() else float("inf")
    return worst
