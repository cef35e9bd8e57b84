"""The example a user gives, and inputs like it: on these outputs are compared, and constants found."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves, tree_map

from kasuri.checks import described, told
from kasuri.compression.counting import watching
from kasuri.compression.running import run
from kasuri.network.contexts import plain_path

COUNT = 2  # of inputs beside the example


def probes(net: nn.Module, example: Any) -> list[Any]:
    """The example, and inputs like it on which the network runs.

    Normal numbers replace floats, and random ones booleans; whole numbers change places. Where these are all
    the same (a mask of ones, lengths of full sequences), smaller ones come in: what depends on them would be
    taken for constant otherwise. A network that cannot run on such inputs keeps those of the example. The
    last one has other sizes (length of sequences, height and width of pictures) wherever the network runs on
    these.

    Args:
        net: plain, in evaluation mode.
        example: an input.

    Examples:
        >>> [p.shape for p in probes(nn.Linear(3, 1), torch.zeros(2, 3))]
        [torch.Size([2, 3]), torch.Size([2, 3]), torch.Size([2, 3]), torch.Size([1, 3])]
    """
    whole = [leaf for leaf in _tensors(example) if not leaf.is_floating_point()]
    for least in (0, 1, None) if whole else (None,):
        generator = torch.Generator().manual_seed(0)

        def other(leaf: Any, least: int | None = least, by: torch.Generator = generator) -> Any:
            return _other(leaf, least, by) if isinstance(leaf, Tensor) else leaf

        found = [tree_map(other, example) for _ in range(COUNT)]
        if least is None or _runs(net, found):
            break
    return [example, *found, *_resized(net, found[0])]


def _resized(net: nn.Module, example: Any) -> list[Any]:
    """The example with other sizes: in all dimensions at once, or if that does not run in each."""
    dims = range(max(leaf.dim() for leaf in _tensors(example)))
    singly = [(dim, other) for dim in dims if _runs(net, [other := _other_size(example, dim)])]
    jointly = example
    for dim, _ in singly:
        jointly = _other_size(jointly, dim)
    if len(singly) > 1 and _runs(net, [jointly]):
        return [jointly]
    return [other for _, other in singly]


def _other_size(example: Any, dim: int) -> Any:
    """A dimension longer by half (the first, often that of examples, shorter) in all tensors alike."""
    size = next(leaf.shape[dim] for leaf in _tensors(example) if leaf.dim() > dim)
    new = size + (size + 1) // 2 if dim or size == 1 else (size + 1) // 2

    def resized(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() <= dim or leaf.shape[dim] != size:
            return leaf
        return leaf.index_select(dim, torch.arange(new, device=leaf.device) % size)

    return tree_map(resized, example)


def _other(leaf: Tensor, least: int | None, generator: torch.Generator) -> Tensor:
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
        with torch.no_grad(), plain_path():
            for one in inputs:
                run(net, one)
    except Exception:
        return False
    return True


def _same(value: Tensor) -> bool:
    flat = value.flatten()
    return bool(len(flat)) and not flat.is_complex() and bool((flat == flat[0]).all())


def _tensors(example: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor)]


def unvaried(inputs: list[Any]) -> list[str]:
    """A note on booleans and whole numbers that are all the same in all probes.

    Examples:
        >>> unvaried([torch.zeros(2), torch.ones(2)]), len(unvaried([torch.ones(2).long()] * 3))
        ([], 1)
    """
    notes = []
    for number, leaves in enumerate(zip(*map(_tensors, inputs), strict=True), 1):
        if not leaves[0].is_floating_point() and _same(torch.cat([t.flatten() for t in leaves])):
            notes.append(
                f"tensor {number} of the example has one value everywhere, and the network ran on no other "
                "that was tried: what depends on it counts as constant; give an example in which it varies"
            )
    return notes


@torch.no_grad()
def check_example(net: nn.Module, example: Any) -> None:
    """Refuse what the network cannot run on, and examples without a dimension that counts them.

    Args:
        net: plain.
        example: as the user gave it.
    """
    tensors = _tensors(example)
    want = "give a batch of inputs as the network takes it: a tensor, a tuple of arguments or a mapping"
    if not tensors:
        raise TypeError(f"compress(example={type(example).__name__}): no tensor in it; {want}")
    if not all(leaf.numel() for leaf in tensors):
        shapes = [tuple(leaf.shape) for leaf in tensors]
        raise ValueError(f"compress(example=...): nothing in it, its shape is {shapes}; {want}")
    given = {id(leaf) for leaf in tensors}
    single: list[str] = []

    def look(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        x = next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None)
        if x is not None and id(x) in given and x.dim() == _unbatched(module):
            single.append(f"{type(module).__name__} reads shape {tuple(x.shape)}")

    failed: Exception | None = None
    try:
        with watching(net, look):
            run(net, example)
    except Exception as error:
        failed = error
    if single:
        raise ValueError(
            f"compress(example=...): one example without a dimension that counts examples ({single[0]}); "
            "write example.unsqueeze(0)"
        ) from failed
    if failed is not None:
        raise ValueError(
            f"compress(example=...): the network does not run on it, {described(*tensors)} "
            f"({told(failed)}); {want}"
        ) from failed


def _unbatched(module: nn.Module) -> int | None:
    """Dimensions of an input that is one example."""
    if isinstance(module, nn.Linear):
        return 1
    if isinstance(module, _ConvNd):
        return 1 + len(module.kernel_size)
    return 2 if isinstance(module, nn.RNNBase | nn.MultiheadAttention) else None
