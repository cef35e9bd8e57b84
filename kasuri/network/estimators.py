"""Estimators: how randomness enters one layer. Each is a plain function of (posterior, op, x).

| estimator | noise                                | exact for                                        |
|-----------|--------------------------------------|--------------------------------------------------|
| `mean`    | none: the posterior mean             | -                                                |
| `shared`  | one draw of the weights per call     | everything: one draw is one function             |
| `local`   | a draw of the output per example     | linear layers fed one vector per example; for     |
|           | (local reparameterisation)           | convolutions and sequences marginals only        |
| `flipout` | one draw, signs flipped per example  | each example, families with independent weights  |
| `auto`    | `local` where that is exact and      | everything                                       |
|           | cheaper, else `shared`               |                                                  |

`shared` and `auto` work on any parameter of any module. `local` and `flipout` need to know what
the layer does with its weight: Linear, Conv1-3d and ConvTranspose1-3d.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kasuri.checks import near_misses
from kasuri.posteriors.base import Elementwise, Op, Posterior, Pushable

Estimator = Callable[[Posterior, Op, Tensor], Tensor]


def _bias(op: Op, value: Callable[[Posterior], Tensor]) -> Tensor | None:
    return value(op.bias) if isinstance(op.bias, Posterior) else op.bias


def mean(posterior: Posterior, op: Op, x: Tensor) -> Tensor:
    """The layer at the posterior mean."""
    return op.shifted(x, posterior.mean, _bias(op, lambda q: q.mean))


def shared(posterior: Posterior, op: Op, x: Tensor) -> Tensor:
    """The layer at one draw of the weights, the same for the whole batch."""
    return op.shifted(x, posterior.rsample(), _bias(op, lambda q: q.rsample()))


def local(posterior: Posterior, op: Op, x: Tensor) -> Tensor:
    """A draw of the layer's output with fresh weights for every example."""
    assert isinstance(posterior, Pushable)
    return posterior.push(op, x)


def flipout(posterior: Posterior, op: Op, x: Tensor) -> Tensor:
    """The layer at the mean plus s ⊙ op(x ⊙ r, ΔW), r and s random signs per example and feature."""
    assert isinstance(posterior, Elementwise)
    y = op.shifted(x, posterior.mean, _bias(op, lambda q: q.mean))
    flip_in, flip_out = op.signs(x, y)
    bias = op.bias.rsample() - op.bias.mean if isinstance(op.bias, Posterior) else None
    return torch.addcmul(y, op.shifted(x * flip_in, posterior.perturbation(), bias), flip_out)


def auto(posterior: Posterior, op: Op, x: Tensor) -> Tensor:
    """`local` or `shared`, whichever is right and takes less arithmetic, layer by layer.

    `local` for linear layers fed one vector per example, if the family can draw outputs and these
    vectors are few enough: for a matrix normal pushing B of them costs B (in² + out²), a draw of
    the weight in · out (in + out), so that the batch decides. `shared` for everything else.

    Examples:
        >>> import kasuri
        >>> from torch import nn
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MatrixNormal(), estimator="auto")
        >>> bnn(torch.ones(1, 3)).shape
        torch.Size([1, 2])
    """
    return preferred(posterior, op, x)(posterior, op, x)


def preferred(posterior: Posterior, op: Op, x: Tensor) -> Estimator:
    """What `auto` stands for at this layer and input."""
    if not (isinstance(posterior, Pushable) and op.local_is_exact(x)):
        return shared
    return local if posterior.push_is_cheaper(x.numel() // x.shape[-1]) else shared


OF_WEIGHTS = (mean, shared)  # need nothing but the weight, and so fit any parameter of any module
NAMED: dict[str, Estimator] = {
    "mean": mean,
    "shared": shared,
    "local": local,
    "flipout": flipout,
    "auto": auto,
}


def resolve(estimator: Estimator | str) -> Estimator:
    """The function behind a name; a function is returned as it is.

    Examples:
        >>> resolve("local") is local
        True
    """
    if callable(estimator):
        return estimator
    if estimator in NAMED:
        return NAMED[estimator]
    raise ValueError(f"estimator={estimator!r}: {near_misses(str(estimator), NAMED)}")


def check(estimator: Estimator, posterior: Posterior, layer: str, obstacle: str | None) -> None:
    """Refuse an estimator that would be wrong for this layer and family.

    Args:
        estimator: what was asked.
        posterior: of the layer's weight.
        layer: the layer's name and class, for the message.
        obstacle: why the layer's output cannot be drawn directly, or None if it can.
    """
    if estimator in (*OF_WEIGHTS, auto):
        return
    name = getattr(estimator, "__name__", str(estimator))
    family = type(posterior).__name__
    why = obstacle
    if why is None and estimator is local and not isinstance(posterior, Pushable):
        why = f"{family} cannot draw an output without drawing its weights"
    if why is None and estimator is flipout and not isinstance(posterior, Elementwise):
        why = f"flipping signs changes the law of {family} (its weights are not independent noise)"
    if why is not None:
        raise ValueError(
            f"estimator={name!r} was asked for {layer}: {why}. "
            f'Write estimator="shared" for it (call bayesianize once for these layers and once '
            "for the rest, with where=...)"
        )
