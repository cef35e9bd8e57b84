"""The private interfaces of torch that this package uses, and what breaks when they change."""

import torch
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint

from kasuri.numerics import torch_internals as internals


def seen_inside(transform, question):
    """What a question answers inside a transform of a function."""
    answers = []

    def function(x):
        answers.append(question())
        return x.sum()

    transform(function)(torch.ones(2, 3))
    return answers[0]


def test_fused_forms_know_that_they_must_not_run_inside_transforms():
    """Otherwise autograd Functions that write into buffers would be vmapped, with wrong results."""
    assert internals.eager()
    assert not seen_inside(vmap, internals.eager)
    assert not seen_inside(grad, internals.eager)


def test_recomputation_by_checkpointing_is_noticed():
    """Otherwise draws that cannot be replayed would silently differ in the backward pass."""
    seen = []

    def function(x):
        seen.append(internals.is_recomputing())
        return x.sin()

    x = torch.ones(2, requires_grad=True)
    checkpoint(function, x, use_reentrant=False).sum().backward()
    assert seen == [False, True]
