"""`kasuri.fit_halving`: several temperatures from one warm start, of which the better half goes on."""

import copy
import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from kasuri.network.random import require_posteriors
from kasuri.objectives.elbo import ELBO, Objective
from kasuri.objectives.schedules import Constant
from kasuri.objectives.temperature import starting_point
from kasuri.streams import fresh, mix
from kasuri.training import defaults, preparing
from kasuri.training.callbacks import Row
from kasuri.training.distributed import Processes
from kasuri.training.fit import fit
from kasuri.training.fitted import Fitted
from kasuri.training.sources import as_source
from kasuri.training.validation import validate

FACTORS = (1 / 9, 1 / 3, 1.0, 3.0)  # of 0.4 · data / weights
SAMPLES = 32  # draws per comparison
_REFUSED = ("temperature", "folder", "resume", "callbacks", "tensorboard", "scheduler", "patience")


def fit_halving(
    bnn: nn.Module,
    train: Any,
    valid: Any = None,
    *,
    factors: Sequence[float] = FACTORS,
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    **options: Any,
) -> Fitted:
    """Train a converted network and choose its temperature by successive halving.

    A quarter of the epochs warms up at 0.4 · data / weights. From there one copy of the network per
    temperature goes on, and the half with the worse validation NLL is given up, until one is left, which
    trains for another quarter while the learning rate falls to 0. All copies together take as many steps as
    one run of `kasuri.fit`, whatever their number: the cost is that of `kasuri.fit`, the memory that of the
    copies. Unlike there, there is no checkpoint to resume from.

    Args:
        bnn: a network from `bayesianize`, trained in place.
        train: as for `kasuri.fit`.
        valid: as for `kasuri.fit`; a tenth of the training examples if not given.
        factors: the temperatures, in units of 0.4 · data / weights; 2, 4, 8, ... of them.
        epochs: in all, shared by the copies; as for `kasuri.fit` if not given.
        batch_size: as for `kasuri.fit`.
        seed: as for `kasuri.fit`.
        options: others of `kasuri.fit`: likelihood, prior, learning_rate, optimizer, clip, augment, show, ...

    Examples:
        >>> import torch, kasuri
        >>> x = torch.randn(200, 3)
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField())
        >>> fitted = fit_halving(bnn, (x, (x[:, 0] > 0).long()), epochs=16, seed=0)
        >>> fitted.temperature in [factor * 1.0 for factor in FACTORS] and fitted.net is bnn
        True
    """
    _check(bnn, factors, options)
    seed = fresh() if seed is None else seed
    if valid is None:
        train, valid = preparing.held_out(train, seed)
    source = as_source(train, batch_size, None, seed, Processes())
    epochs = epochs or defaults.epochs(len(source), round(source.num_data / len(source)))
    if epochs < 4 * len(factors):
        raise ValueError(
            f"fit_halving(epochs={epochs}): {len(factors)} temperatures share them, so give at least "
            f"{4 * len(factors)}, or use kasuri.fit"
        )
    weights = sum(q.numel() for q in require_posteriors(bnn).values())
    start = starting_point(source.num_data, weights)
    common = {"batch_size": batch_size, **options}
    own = {
        k: v for k, v in common.items() if k not in ("likelihood", "prior", "kl_weight", "output")
    }
    steady: dict[str, Any] = {"scheduler": defaults.constant, "keep": "last"}
    warm = fit(
        bnn, train, valid, temperature=start, epochs=epochs // 4, seed=seed, **steady, **common
    )
    objective, parts = warm.objective, [warm]
    assert isinstance(objective, ELBO)
    objective.kl_weight = Constant(1.0)
    alive = {factor: _at(copy.deepcopy(objective), factor * start) for factor in factors}
    rungs = int(math.log2(len(factors)))
    for rung in range(rungs):
        length = max(1, epochs // (2 * rungs * len(alive)))
        for one in alive.values():
            fit(one, train, valid, epochs=length, seed=mix(seed, rung + 1), **steady, **own)
        alive = _better_half(alive, valid, seed)
    ((factor, winner),) = alive.items()
    objective.load_state_dict(winner.state_dict())
    _at(objective, factor * start)
    parts.append(
        fit(objective, train, valid, epochs=max(1, epochs // 4), seed=mix(seed, rungs + 1), **own)
    )
    return _joined(objective, parts)


def _check(bnn: nn.Module, factors: Sequence[float], options: dict[str, Any]) -> None:
    if isinstance(bnn, Objective):
        raise TypeError("fit_halving(objective): it makes its own objective; give the network")
    count = len(factors)
    if count < 2 or count & (count - 1) or len(set(factors)) < count or min(factors) <= 0:
        raise ValueError(
            f"fit_halving(factors={tuple(factors)}): 2, 4, 8, ... different numbers above 0"
        )
    if wrong := [name for name in _REFUSED if name in options]:
        raise ValueError(
            f"fit_halving({wrong[0]}=...): it trains several networks and chooses; use kasuri.fit for that"
        )


def _at(objective: ELBO, temperature: float) -> ELBO:
    objective.temperature = Constant(min(1.0, temperature))
    return objective


def _better_half(alive: dict[float, ELBO], valid: Any, seed: int) -> dict[float, ELBO]:
    """Those with the lower validation NLL, by the same noise; what is not a number is worst."""
    first = next(iter(alive.values()))
    x, y = preparing.checked_rows(valid, first, SAMPLES, seed)
    scores = {k: validate(one, x, y, SAMPLES, seed)["nll"] for k, one in alive.items()}
    order = sorted(scores, key=lambda k: scores[k] if math.isfinite(scores[k]) else math.inf)
    return {k: alive[k] for k in order[: len(order) // 2]}


def _joined(objective: ELBO, parts: Sequence[Fitted]) -> Fitted:
    """The history of the warm-up and of the winner's end, one after the other."""
    history: list[Row] = []
    epochs = steps = 0
    for part in parts:
        done = epochs
        rows = [
            {**r, "epoch": r["epoch"] + epochs, "step": r["step"] + steps} for r in part.history
        ]
        history += rows
        epochs, steps = int(rows[-1]["epoch"]), int(rows[-1]["step"])
    seconds = sum(part.seconds for part in parts)
    return Fitted(objective, history, done + parts[-1].best_epoch, seconds)
