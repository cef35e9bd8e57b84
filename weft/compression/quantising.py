"""Eight-bit integers: the small network through torch's own quantisation."""

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.bayesian import named_bayesian
from weft.compression.running import run

DYNAMIC = {nn.Linear, nn.LSTM, nn.GRU}


def quantise(net: nn.Module, inputs: Tensor | Sequence[Any], how: str = "static") -> nn.Module:
    """A copy of a plain network that computes with 8-bit integers, on the processor.

    Args:
        net: plain, as `weft.compress` gives it.
        inputs: a batch or several; "static" looks at them to find the range of every activation.
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
    if next(named_bayesian(net), None) is not None:
        raise TypeError(
            "quantise: a Bayesian network; give the small plain one of weft.compress, or weft.collapse(bnn)"
        )
    inputs = [inputs] if isinstance(inputs, Tensor) else inputs
    inputs = [torch.utils._pytree.tree_map(_single, one) for one in inputs]
    net = copy.deepcopy(net).cpu().float().eval()
    with warnings.catch_warnings():
        # torch announces that its quantisation will move to another package
        warnings.simplefilter("ignore")
        if how == "dynamic":
            from torch.ao.quantization import quantize_dynamic

            return quantize_dynamic(net, DYNAMIC, dtype=torch.qint8)
        return _static(net, inputs)


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
    first = inputs[0]
    example = tuple(first) if isinstance(first, tuple | list) else (first,)
    try:
        ready = prepare_fx(net, get_default_qconfig_mapping("x86"), example)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"torch cannot trace this network to quantise it ahead of time ({reason}): write "
            'how="dynamic"'
        ) from None
    with torch.no_grad():
        for one in inputs:
            run(ready, one)
    return convert_fx(ready)
