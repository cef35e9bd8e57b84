"""The private interfaces of torch that this package uses, and what breaks when they change."""

import re
from pathlib import Path

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


PRIVATE = re.compile(
    r"\btorch\._C\.\w+|\btorch\._(?!C\b|_)\w+|\btorch\.utils\._\w+|\btorch\.fx\.experimental\.\w+"
)
FENCED = {
    "torch._C._are_functorch_transforms_active": {"numerics/torch_internals.py"},
    "torch._C._current_graph_task_id": {"numerics/torch_internals.py"},
    # predictions without draws: an error of torch.export that is named to the user
    "torch._dynamo": {"prediction/moments/trace.py"},
    # export of a network with its moments: its graph with a batch of any size
    "torch._subclasses": {"exporting/programs.py"},
    "torch.fx.experimental.proxy_tensor": {"exporting/programs.py"},
    "torch.fx.experimental.symbolic_shapes": {"exporting/programs.py"},
    # compression: operations are counted, and all tensors found in what a network returns
    "torch.utils._python_dispatch": {"compression/counting.py"},
    "torch.utils._pytree": {
        "compression/coupling.py",
        "compression/probes.py",
        "exporting/programs.py",
    },
}


def test_private_interfaces_are_used_in_few_places():
    """Whoever needs another one puts it into `numerics/torch_internals.py`, with a test here."""
    package = Path(internals.__file__).parents[1]
    for file in package.rglob("*.py"):
        for name in PRIVATE.findall(file.read_text()):
            assert str(file.relative_to(package)) in FENCED.get(name, set()), name
