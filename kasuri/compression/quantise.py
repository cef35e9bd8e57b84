"""Eight-bit integers: the small network through torch's own quantisation."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from kasuri.checks import told
from kasuri.compression.probes import run, uncompiled
from kasuri.network.contexts import plain_path
from kasuri.network.random import named_posteriors

DYNAMIC = {nn.Linear, nn.LSTM, nn.GRU}
# whose integer forms in torch give other numbers on some processors: they stay as they are
_UNSOUND = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
ROUGH = 0.25  # of the outputs' size: more than rounding to eight bits does to them


def quantise(
    net: nn.Module, inputs: Tensor | Mapping[str, Any] | Sequence[Any], how: str = "static"
) -> nn.Module:
    """A copy of a plain network that computes with 8-bit integers, on the processor.

    It is run beside the network on the given inputs; you are warned if it gives something else.

    Args:
        net: plain, as `kasuri.compress` gives it.
        inputs: a batch (a tensor, a tuple of arguments or a mapping of named ones) or a list of several;
            "static" looks at them to find the range of every activation.
        how: "static" quantises weights and activations of linear layers and convolutions ahead of time
            (torch.ao.quantization.quantize_fx); "dynamic" quantises weights of linear and recurrent layers,
            and activations as they come.

    Examples:
        >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
        >>> x = torch.randn(64, 8)
        >>> small = quantise(net, [x])
        >>> bool((small(x) - net(x)).abs().max() < 0.1)
        True
    """
    if how not in ("static", "dynamic"):
        raise ValueError(f'quantise(how={how!r}): write how="static" or how="dynamic"')
    if not isinstance(net, nn.Module):
        raise TypeError(f"quantise({type(net).__name__}): give a plain network")
    net = uncompiled(net)
    if next(named_posteriors(net), None) is not None:
        raise TypeError(
            "quantise: a Bayesian network; give the plain one of kasuri.compress or kasuri.collapse(bnn)"
        )
    if not isinstance(inputs, Tensor | Mapping | Sequence) or isinstance(inputs, str):
        raise TypeError(
            f"quantise(inputs={type(inputs).__name__}): give a batch of inputs, or a list of several"
        )
    inputs = [inputs] if isinstance(inputs, Tensor | Mapping | tuple) else inputs
    inputs = [torch.utils._pytree.tree_map(_single, one) for one in inputs]
    net = copy.deepcopy(net).cpu().float().eval()
    with warnings.catch_warnings():
        # torch announces that its quantisation will move to another package
        warnings.simplefilter("ignore")
        if how == "dynamic":
            from torch.ao.quantization import quantize_dynamic

            small = quantize_dynamic(_slow_path(net), DYNAMIC, dtype=torch.qint8)
        else:
            small = _static(net, inputs)
    away = max((_away(net, small, one) for one in inputs), default=0.0)
    if away > ROUGH:
        warnings.warn(
            f"quantise: the outputs differ by {away:.0%} of their size from those of the network; try the "
            'other how=, or torch.backends.quantized.engine = "fbgemm"',
            stacklevel=2,
        )
    return small


def _leaky(net: nn.Module) -> nn.Module:
    """A copy with LeakyReLU for PReLU of one slope, whose integer form in torch is wrong."""
    net = copy.deepcopy(net)
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.PReLU):
                setattr(parent, name, nn.LeakyReLU(float(child.weight.detach())))
    return net


def _slow_path(net: nn.Module) -> nn.Module:
    """A copy whose transformer layers call their parts: torch's shortcut wants to see float weights."""
    net = copy.deepcopy(net)
    for module in net.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
    return net


@torch.no_grad()
def _away(net: nn.Module, small: nn.Module, inputs: Any) -> float:
    """Root mean square of the difference of outputs, relative to that of the outputs."""
    with plain_path():
        mine, other = (
            torch.cat([t.flatten() for t in tree_leaves(run(one, inputs)) if _is_float(t)])
            for one in (net, small)
        )
    return float((mine - other).norm() / mine.norm().clamp(min=1e-30))


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _single(leaf: Any) -> Any:
    """Floats as the copy takes them."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.cpu().float() if leaf.is_floating_point() else leaf.cpu()


def _static(net: nn.Module, inputs: Sequence[Any]) -> nn.Module:
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    if not inputs:
        raise ValueError(
            'quantise(inputs=[]): "static" finds the ranges of activations from batches of inputs; '
            'give some, or write how="dynamic"'
        )
    if any(isinstance(one, nn.PReLU) and one.num_parameters > 1 for one in net.modules()):
        raise ValueError(
            'quantise: torch computes PReLU with several slopes wrongly in integers; write how="dynamic"'
        )
    first = inputs[0]
    example = tuple(first) if isinstance(first, tuple | list) else (first,)
    try:
        mapping = get_default_qconfig_mapping("x86")
        for kind in _UNSOUND:
            mapping.set_object_type(kind, None)
        ready = prepare_fx(_leaky(net), mapping, example)
    except Exception as error:
        raise ValueError(
            f"torch cannot trace this network to quantise it ahead of time ({told(error)}): write "
            'how="dynamic"'
        ) from None
    with torch.no_grad():
        for one in inputs:
            run(ready, one)
    return convert_fx(ready)
