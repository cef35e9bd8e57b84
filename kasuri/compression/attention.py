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

from kasuri.compression.probes import gives, outputs

_OPTIONS = {
    "key_padding_mask": None,
    "need_weights": True,
    "attn_mask": None,
    "average_attn_weights": True,
    "is_causal": False,
}


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
    """Weights of the maps of query, key and value, as views."""
    packed = module._parameters["in_proj_weight"]
    if packed is not None:
        return list(packed.detach().chunk(3))
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    return [module.get_parameter(name).detach() for name in names]


@torch.no_grad()
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
    weight, bias = module.out_proj.weight, module.in_proj_bias
    like: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
    dead = torch.zeros(module.num_heads, dtype=torch.bool, device=weight.device)
    dead[list(gone)] = True
    dead = dead.repeat_interleave(module.head_dim)
    size = int((~dead).sum())
    inner = nn.MultiheadAttention(
        size,
        module.num_heads - len(gone),
        dropout=module.dropout,
        bias=bias is not None,
        kdim=module.kdim,
        vdim=module.vdim,
        batch_first=module.batch_first,
        **like,
    )
    query = nn.Linear(module.embed_dim, size, bias=bias is not None, **like)
    of_query, *others = (part[~dead] for part in _projections(module))
    query.weight.copy_(of_query)
    for new, old in zip(_projections(inner), (torch.eye(size, **like), *others), strict=True):
        new.copy_(old)
    inner.out_proj = copy.deepcopy(module.out_proj)
    inner.out_proj.weight, inner.out_proj.in_features = nn.Parameter(weight[:, ~dead]), size
    if bias is not None and inner.in_proj_bias is not None:
        biases = bias.unflatten(0, (3, -1))
        query.bias.copy_(biases[0, ~dead])
        inner.in_proj_bias.copy_(biases[:, ~dead].flatten())
        inner.in_proj_bias[:size] = 0.0
        inner.out_proj.bias.add_(weight[:, dead] @ biases[2, dead])
    inner.train(module.training)
    return _wired(query, inner)


def _wired(query: nn.Linear, inner: nn.MultiheadAttention) -> GraphModule:
    """attention(map(query), key, value, ...) with the signature of attention."""
    # what transformer layers ask their attention: answers that send them down the plain path
    answers: dict[str, Any] = {
        "batch_first": inner.batch_first,
        "in_proj_bias": None,
        "_qkv_same_embed_dim": False,
        "num_heads": inner.num_heads,
    }
    root = nn.Module()
    root.query_map, root.attention = query, inner
    graph = Graph()
    first, *others = (graph.placeholder(name) for name in ("query", "key", "value"))
    options: dict[str, Any] = {
        name: graph.placeholder(name, default_value=value) for name, value in _OPTIONS.items()
    }
    for name, answer in answers.items():
        setattr(root, name, answer)
        graph.get_attr(name)  # so that copies have it too
    mapped = graph.call_module("query_map", (first,))
    graph.output(graph.call_module("attention", (mapped, *others), options))
    return GraphModule(root, graph, "Attention")


def shrink_heads(
    net: nn.Module, inputs: list[Any], keep_posterior: bool = False
) -> tuple[nn.Module, dict[str, int], list[str]]:
    """The network without dead heads, how many went by group, and why others stayed.

    Args:
        net: plain, in double precision, in evaluation mode; it is not changed.
        inputs: of `probes`.
        keep_posterior: whether a posterior is to be cut in the same way: then all heads stay.
    """
    notes, removed = [], {}
    for name, module in list(net.named_modules()):
        if not isinstance(module, nn.MultiheadAttention) or not (gone := dead_heads(module)):
            continue
        if keep_posterior:
            reason = "a posterior keeps them, as zeros"
        elif module.bias_k is not None or module.add_zero_attn:
            reason = "it attends to a learned or zero key beside the given ones"
        elif _size(new := without_heads(module, gone)) >= _size(module):
            reason = "torch's attention with fewer heads needs a map more, and would be larger"
        elif not gives(smaller := _replaced(net, name, new), inputs, outputs(net, inputs)):
            reason = "without them the outputs would change"
        else:
            net, removed[f"{name} (heads)"] = smaller, len(gone)
            continue
        notes.append(f"{len(gone)} dead heads of {name!r} stay: {reason}")
    return net, removed, notes


def _replaced(net: nn.Module, name: str, new: nn.Module) -> nn.Module:
    """A copy of a network with another module in the place of attention, wherever it is used."""
    net = copy.deepcopy(net)
    old = net.get_submodule(name)
    for parent in list(net.modules()):
        for attribute, child in parent._modules.items():
            if child is old:
                parent._modules[attribute] = new
        if isinstance(parent, nn.TransformerEncoder):
            parent.use_nested_tensor = False  # nested tensors need all heads of the first layer
    return new if old is net else net


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
