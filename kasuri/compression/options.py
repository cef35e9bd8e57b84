"""Options of `kasuri.compress`: what is refused."""

import inspect
from collections.abc import Mapping
from typing import Any

from kasuri.checks import is_number, is_whole, near_misses
from kasuri.compression.criteria import RADII, check_criterion
from kasuri.training.fit import fit

PRICES = ("weights", "macs")


def check_options(
    criterion: str,
    threshold: float | str,
    structure: str,
    validation: Any,
    keep_posterior: bool,
    rank: Any,
    floor: Any,
    finetune: Any,
    price: str,
    budget: int | None,
    tolerance: Any,
    calls: Any,
) -> None:
    """Refuse what does not go together, before anything is computed."""
    check_criterion(criterion)
    _check_numbers(tolerance, calls, rank, floor)
    _check_threshold(threshold, validation, price, budget)
    if structure == "weights" and criterion in RADII:
        raise ValueError(
            f'compress(criterion={criterion!r}, structure="weights"): radii belong to rows and '
            'columns; write structure="both", or criterion="snr"'
        )
    if not keep_posterior and (rank is not None or floor is not None):
        raise ValueError(
            "compress(rank=..., floor=...): a plain network has no standard deviations; add "
            "keep_posterior=True"
        )
    if keep_posterior and finetune is not None:
        raise ValueError(
            "compress(keep_posterior=True, finetune=...): a posterior is trained by an ELBO, which "
            "belongs to one network; make a new one for the result, or hand the result to kasuri.fit"
        )
    if finetune is not None and not (isinstance(finetune, Mapping) and "train" in finetune):
        raise ValueError(
            "compress(finetune={...}): the options of kasuri.fit, train among them, e.g. "
            "finetune={'train': (x, y), 'epochs': 3}"
        )
    known = inspect.signature(fit).parameters.keys() - {"model"}
    if unknown := [name for name in finetune or () if name not in known]:
        raise ValueError(
            f"compress(finetune={{{unknown[0]!r}: ...}}): kasuri.fit has no such option; "
            f"{near_misses(unknown[0], known)}"
        )


def _check_threshold(
    threshold: float | str, validation: Any, price: str, budget: int | None
) -> None:
    if not is_number(threshold) and threshold not in ("auto", "gap", "loss", "layers"):
        raise ValueError(
            f'compress(threshold={threshold!r}): write "auto", "gap", "loss", "layers" or a number'
        )
    if price not in PRICES:
        raise ValueError(
            f'compress(price={price!r}): write "weights", or "macs" for multiply-accumulates'
        )
    if budget is not None and threshold != "layers":
        raise ValueError(
            f"compress(budget={budget}, threshold={threshold!r}): what goes to keep a budget is found step "
            'by step; write threshold="layers" and give validation data'
        )
    if budget is not None and not is_whole(budget, 0):
        raise ValueError(
            f"compress(budget={budget!r}): how many may be left at most, a whole number"
        )
    if price != "weights" and threshold != "layers":
        raise ValueError(
            f"compress(price={price!r}, threshold={threshold!r}): prices count where units go in steps; "
            'write threshold="layers" and give validation data'
        )
    if threshold in ("loss", "layers") and validation is None:
        raise ValueError(
            f'compress(threshold="{threshold}"): the loss of what? Give validation=(x, y) with a '
            "kasuri.ELBO, or a function from a network to its loss"
        )


def _check_numbers(tolerance: Any, calls: Any, rank: Any, floor: Any) -> None:
    if not (is_number(tolerance) and tolerance >= 0):
        raise ValueError(
            f"compress(tolerance={tolerance!r}): by how much the loss may grow, 0 or more"
        )
    if not is_whole(calls, 0):
        raise ValueError(
            f"compress(calls={calls!r}): a whole number of calls to measure latency, 0 for none"
        )
    if rank is not None and rank != "auto" and not is_whole(rank, 1):
        raise ValueError(
            f'compress(rank={rank!r}): the rank of standard deviations, 1 or more, or "auto"'
        )
    if floor is not None and not (is_number(floor) and floor > 0):
        raise ValueError(f"compress(floor={floor!r}): a standard deviation, positive")
