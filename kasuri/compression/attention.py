"""Attention with fewer heads, out of torch's own parts.

torch's attention wants heads times their size to be the size of the query. With fewer heads it is not, so
the query first goes through a linear map of its own, and attention proper has the smaller size; its
own map of the query is the identity. Both sit in a `torch.fx.GraphModule`, which is called like
the attention it replaces, and can be copied, pickled and loaded without kasuri.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

from kasuri.compression.probes import TOLERANCE, distance, outputs

_OPTIONS = {
    "key_padding_mask": None,
    "need_weights": True,
    "attn_mask": None,
    "average_attn_weights": True,
    "is_causal": False,
}


def obstacle_of(module: nn.MultiheadAttention) -> str | None:
    """Why heads of this attention cannot be taken out, if they cannot."""
    if module.bias_k is not None or module.bias_v is not None or module.add_zero_attn:
        return "it attends to a learned or zero key beside the given ones"
    return None


def dead_heads(module: nn.MultiheadAttention) -> list[int]:
    """Heads whose outputs are read with weights 0, or whose values are constant; one always stays.

    Attention averages values with weights that sum to 1: constant values stay what they are.

    Examples:
        >>> layer = nn.MultiheadAttention(4, 2)
        >>> layer.out_proj.weight.data[:, :2] = 0
        >>> dead_heads(layer)
        [0]
    """
    heads = module.num_heads
    values = _projections(module)[2].reshape(heads, -1)
    outs = module.out_proj.weight.detach().T.reshape(heads, -1)
    gone = [h for h in range(heads) if not bool(values[h].any()) or not bool(outs[h].any())]
    return gone[1:] if len(gone) == heads else gone


def _projections(module: nn.MultiheadAttention) -> list[Tensor]:
    """Weights of the maps of query, key and value."""
    packed = module._parameters["in_proj_weight"]
    if packed is not None:
        return list(packed.detach().chunk(3))
    found = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    return [one.detach() for one in found if one is not None]


def without_heads(module: nn.MultiheadAttention, gone: Sequence[int]) -> GraphModule:
    """The same attention without these heads; constants of their values are in the last bias.

    It gives attention weights of the heads that are left.

    Args:
        module: in any precision.
        gone: of `dead_heads`.

    Examples:
        >>> layer = nn.MultiheadAttention(6, 3).eval()
        >>> layer.out_proj.weight.data[:, 2:] = 0
        >>> small, x = without_heads(layer, [1, 2]), torch.randn(5, 1, 6)
        >>> torch.allclose(small(x, x, x)[0], layer(x, x, x)[0], atol=1e-6)
        True
    """
    size = module.embed_dim // module.num_heads
    stay = [h for h in range(module.num_heads) if h not in set(gone)]
    rows = torch.tensor([h * size + i for h in stay for i in range(size)])
    lost = torch.tensor([h * size + i for h in gone for i in range(size)], dtype=torch.long)
    like: dict[str, Any] = {
        "device": module.out_proj.weight.device,
        "dtype": module.out_proj.weight.dtype,
    }
    weights = _projections(module)
    packed = module.in_proj_bias
    biases = (
        packed.detach().chunk(3) if packed is not None else [w.new_zeros(len(w)) for w in weights]
    )
    inner = nn.MultiheadAttention(
        len(rows),
        len(stay),
        dropout=module.dropout,
        bias=packed is not None,
        kdim=module.kdim,
        vdim=module.vdim,
        batch_first=module.batch_first,
        **like,
    )
    query = nn.Linear(module.embed_dim, len(rows), bias=packed is not None, **like)
    out = copy.deepcopy(module.out_proj)
    with torch.no_grad():
        query.weight.copy_(weights[0][rows])
        _fill(inner, torch.eye(len(rows), **like), weights[1][rows], weights[2][rows])
        if packed is not None:
            query.bias.copy_(biases[0][rows])
            zero = torch.zeros_like(biases[0][rows])
            assert inner.in_proj_bias is not None
            inner.in_proj_bias.copy_(torch.cat([zero, biases[1][rows], biases[2][rows]]))
        constant = out.weight[:, lost] @ biases[2][lost]
        out.weight = nn.Parameter(out.weight[:, rows].clone())
        out.in_features = len(rows)
        bias = out._parameters["bias"]
        if bias is not None:
            bias.add_(constant)
        elif bool(constant.any()):
            out.bias = nn.Parameter(constant)
    inner.out_proj = out
    inner.train(module.training)
    return _wired(query, inner, module.batch_first)


def _fill(inner: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> None:
    packed = inner._parameters["in_proj_weight"]
    if packed is not None:
        packed.copy_(torch.cat([query, key, value]))
        return
    for name, weight in (
        ("q_proj_weight", query),
        ("k_proj_weight", key),
        ("v_proj_weight", value),
    ):
        inner.get_parameter(name).copy_(weight)


def _wired(query: nn.Linear, inner: nn.MultiheadAttention, batch_first: bool) -> GraphModule:
    """attention(map(query), key, value, ...) with the signature of attention."""
    # what transformer layers ask their attention: answers that send them down the plain path
    answers: dict[str, Any] = {
        "batch_first": batch_first,
        "in_proj_bias": None,
        "_qkv_same_embed_dim": False,
        "num_heads": inner.num_heads,
    }
    root = nn.Module()
    root.query_map, root.attention = query, inner
    for name, answer in answers.items():
        setattr(root, name, answer)
    graph = Graph()
    names = ("query", "key", "value")
    given = {name: graph.placeholder(name) for name in names}
    given |= {
        name: graph.placeholder(name, default_value=value) for name, value in _OPTIONS.items()
    }
    for name in answers:  # so that copies have them too
        graph.get_attr(name)
    mapped = graph.call_module("query_map", (given["query"],))
    options: dict[str, Any] = {name: given[name] for name in _OPTIONS}
    result = graph.call_module("attention", (mapped, given["key"], given["value"]), options)
    graph.output(result)
    return GraphModule(root, graph, "Attention")


def shrink_heads(
    net: nn.Module, inputs: list[Any]
) -> tuple[nn.Module, dict[str, list[int]], list[str]]:
    """The network without dead heads, which heads went, and why others stayed.

    Args:
        net: plain, in double precision, in evaluation mode; it is not changed.
        inputs: of `probes`.
    """
    notes, done = [], {}
    before: list[Tensor] | None = None
    for name, module in list(net.named_modules()):
        if not isinstance(module, nn.MultiheadAttention) or not (gone := dead_heads(module)):
            continue
        reason = obstacle_of(module)
        if reason is None:
            before = outputs(net, inputs) if before is None else before
            trial, reason = _replaced(net, name, gone, inputs, before)
            if reason is None:
                net, done[name] = trial, gone
        if reason is not None:
            notes.append(f"{len(gone)} dead heads of {name!r} stay: {reason}")
    return net, done, notes


def _replaced(
    net: nn.Module, name: str, gone: list[int], inputs: list[Any], before: list[Tensor]
) -> tuple[nn.Module, str | None]:
    trial = copy.deepcopy(net)
    old = trial.get_submodule(name)
    assert isinstance(old, nn.MultiheadAttention)
    new = without_heads(old, gone)
    if _size(new) >= _size(old):
        return net, "torch's attention with fewer heads needs a map more, and would be larger"
    for parent in list(trial.modules()):
        for attribute, child in parent._modules.items():
            if child is old:
                parent._modules[attribute] = new
    trial = new if old is trial else trial
    for module in trial.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # nested tensors need all heads of the first layer
    try:
        difference = distance(before, outputs(trial, inputs))
    except (RuntimeError, ValueError, TypeError, AssertionError, AttributeError):
        difference = float("inf")
    return trial, None if difference <= TOLERANCE else "without them the outputs would change"


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
