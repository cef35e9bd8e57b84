"""Running a plain network: at the example a user gives, and at inputs like it.

On these inputs (the probes) outputs are compared and constants are found. It is done in double precision,
so that a difference is more than rounding.
"""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from kasuri.checks import described, first_line
from kasuri.inputs import call
from kasuri.network.contexts import plain_path

COUNT = 2  # of inputs beside the example
TOLERANCE = 1e-10  # of outputs in double precision, relative to the largest one and at least 1
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


@torch.no_grad()
def run(net: nn.Module, example: Any) -> Any:
    """The network at an example: a tensor, a tuple of arguments, or a mapping of named ones.

    A network in double precision stays in it: where its code asks for another floating-point type, or makes
    tensors of the usual one, it gets doubles.

    Examples:
        >>> class Scaled(nn.Linear):
        ...     def forward(self, x):
        ...         return super().forward(x.float() / 255)
        >>> run(Scaled(2, 1).double(), torch.ones(1, 2, dtype=torch.uint8)).dtype
        torch.float64
    """
    with plain_path():
        if not any(parameter.dtype == torch.float64 for parameter in net.parameters()):
            return call(net, example)
        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with _Widening():
                return call(net, example)
        finally:
            torch.set_default_dtype(usual)


class _Widening(TorchFunctionMode):
    """Puts double precision in the place of every other floating-point type that is asked for."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in (Tensor.float, Tensor.half, Tensor.bfloat16):
            func = Tensor.double

        def widened(value: Any) -> Any:
            return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value

        wide = {name: widened(value) for name, value in (kwargs or {}).items()}
        return func(*map(widened, args), **wide)


def in_double(net: nn.Module, example: Any) -> tuple[nn.Module, Any]:
    """Copies of a network and of an example in double precision, on the processor, in evaluation mode."""

    def convert(leaf: Tensor) -> Tensor:
        return leaf.cpu().double() if leaf.is_floating_point() else leaf.cpu()

    return copy.deepcopy(net).cpu().double().eval(), tree_map_only(Tensor, convert, example)


def watched(
    net: nn.Module, example: Any, look: Callable[[str, nn.Module, list[Any]], None]
) -> None:
    """Run a network, and before every layer look at its name, the module and its inputs."""

    def hook(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        look(name, module, [*args, *kwargs.values()])

    handles = [
        module.register_forward_pre_hook(partial(hook, name), with_kwargs=True)
        for name, module in net.named_modules()
    ]
    try:
        run(net, example)
    finally:
        for handle in handles:
            handle.remove()


def outputs(net: nn.Module, inputs: list[Any]) -> list[Tensor]:
    """All tensors a network gives for these inputs, floating-point ones."""
    return [leaf for x in inputs for leaf in tensors(run(net, x)) if leaf.is_floating_point()]


def distance(before: list[Tensor], after: list[Tensor]) -> float:
    """Largest difference relative to the largest number (and at least 1); infinite if shapes differ."""
    if [t.shape for t in before] != [t.shape for t in after]:
        return float("inf")
    worst = 0.0
    for a, b in zip(before, after, strict=True):
        if a.numel():
            size = max(1.0, float(a.nan_to_num(0.0).abs().max()))
            same = torch.where(a.isnan() & b.isnan(), 0.0, (a - b).abs())
            worst = max(worst, float(same.nan_to_num(float("inf")).max()) / size)
    return worst


def gives(net: nn.Module, inputs: list[Any], expected: list[Tensor]) -> bool:
    """Whether a network runs on these inputs, and gives what is expected up to rounding."""
    try:
        return distance(expected, outputs(net, inputs)) <= TOLERANCE
    except Exception:
        return False


def probes(net: nn.Module, example: Any) -> list[Any]:
    """The example, and inputs like it on which the network runs.

    Normal numbers replace floats, and random ones booleans; whole numbers change places. Where these are all
    the same (a mask of ones, lengths of full sequences), smaller ones come in: what depends on them would be
    taken for constant otherwise. A network that cannot run on such inputs keeps those of the example. Then
    come inputs with other sizes (length of sequences, height or width of pictures) on which the network runs.

    Examples:
        >>> [p.shape for p in probes(nn.Linear(3, 1), torch.zeros(2, 3))]
        [torch.Size([2, 3]), torch.Size([2, 3]), torch.Size([2, 3]), torch.Size([1, 3])]
    """
    for least in (0, 1, None):
        generator = torch.Generator().manual_seed(0)
        other = partial(_other, least=least, generator=generator)
        variants = [tree_map_only(Tensor, other, example) for _ in range(COUNT)]
        if _runs(net, variants):
            break
    dims = range(max(leaf.dim() for leaf in tensors(example)))
    resized = [_other_size(variants[0], dim) for dim in dims]
    return [example, *variants, *(other for other in resized if _runs(net, [other]))]


def _other_size(example: Any, dim: int) -> Any:
    """A dimension longer by half (the first, often that of examples, shorter) in all tensors alike."""
    size = next(leaf.shape[dim] for leaf in tensors(example) if leaf.dim() > dim)
    new = size + (size + 1) // 2 if dim or size == 1 else (size + 1) // 2

    def resized(leaf: Tensor) -> Tensor:
        if leaf.dim() <= dim or leaf.shape[dim] != size:
            return leaf
        return leaf.index_select(dim, torch.arange(new, device=leaf.device) % size)

    return tree_map_only(Tensor, resized, example)


def _other(leaf: Tensor, *, least: int | None, generator: torch.Generator) -> Tensor:
    """A tensor like this one; booleans and whole numbers that are all the same stay if least is None."""
    if leaf.is_floating_point():
        return torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf)
    if leaf.dtype == torch.bool:
        if least is None:
            return leaf
        random = (torch.rand(leaf.shape, generator=generator) < 0.5).to(leaf.device)
        if leaf.dim():  # the ends stay: a mask that hides everything makes nothing but NaN
            random[..., 0], random[..., -1] = leaf[..., 0], leaf[..., -1]
        return random
    if least is not None and _same(leaf):
        only = int(leaf.flatten()[0])
        low, high = min(least, only), max(only, 1)
        return torch.randint(low, high + 1, leaf.shape, generator=generator).to(leaf)
    order = torch.randperm(leaf.numel(), generator=generator).to(leaf.device)
    return leaf.flatten()[order].reshape(leaf.shape)


def _runs(net: nn.Module, inputs: list[Any]) -> bool:
    try:
        outputs(net, inputs)
    except Exception:
        return False
    return True


def _same(value: Tensor) -> bool:
    flat = value.flatten()
    return bool(len(flat)) and not flat.is_complex() and bool((flat == flat[0]).all())


def tensors(example: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor)]


def unvaried(inputs: list[Any]) -> list[str]:
    """A note on booleans and whole numbers that are all the same in all probes."""
    notes = []
    for number, leaves in enumerate(zip(*map(tensors, inputs), strict=True), 1):
        if not leaves[0].is_floating_point() and _same(torch.cat([t.flatten() for t in leaves])):
            notes.append(
                f"tensor {number} of the example has one value everywhere, and the network ran on no other "
                "that was tried: what depends on it counts as constant; give an example in which it varies"
            )
    return notes


def check_example(net: nn.Module, example: Any) -> None:
    """Refuse what the network cannot run on, and examples without a dimension that counts them."""
    given = tensors(example)
    want = "give a batch of inputs as the network takes it: a tensor, a tuple of arguments or a mapping"
    if not given:
        raise TypeError(
            f"compress(example={type(example).__name__}): there is no tensor in it; {want}"
        )
    if not all(leaf.numel() for leaf in given):
        shapes = [tuple(leaf.shape) for leaf in given]
        raise ValueError(
            f"compress(example=...): the example is empty, with shapes {shapes}; {want}"
        )
    single: list[str] = []

    def look(name: str, module: nn.Module, inputs: list[Any]) -> None:
        x = next(iter(tensors(inputs)), None)
        if x is not None and any(x is leaf for leaf in given) and x.dim() == _unbatched(module):
            single.append(f"{type(module).__name__} reads shape {tuple(x.shape)}")

    try:
        watched(net, example, look)
    except Exception as error:
        if not single:
            raise ValueError(
                f"compress(example=...): the network does not run on it, {described(*given)} "
                f"({first_line(error)}); {want}"
            ) from error
    if single:
        raise ValueError(
            f"compress(example=...): this is a single example, not a batch ({single[0]}); write "
            "example.unsqueeze(0)"
        )


def _unbatched(module: nn.Module) -> int | None:
    """Dimensions of an input that is one example."""
    if isinstance(module, nn.Linear):
        return 1
    if isinstance(module, _ConvNd):
        return 1 + len(module.kernel_size)
    return 2 if isinstance(module, nn.RNNBase | nn.MultiheadAttention) else None


def check_double(net: nn.Module, example: Any) -> None:
    """Refuse networks that do not run in double precision, or are random in evaluation mode."""
    try:
        first, second = (outputs(net, [example]) for _ in range(2))
    except Exception as error:
        raise ValueError(
            f"compress: the network does not run in double precision ({first_line(error)}), in which it is "
            "compared with the smaller one; let it take the types of its inputs and parameters as they are"
        ) from error
    if distance(first, second) > TOLERANCE:
        raise ValueError(
            "compress: two runs of the network in evaluation mode on the same inputs differ, so no "
            "smaller network can be compared with it; look for noise that is on in evaluation mode too, such "
            "as F.dropout(x) without training=self.training"
        )
