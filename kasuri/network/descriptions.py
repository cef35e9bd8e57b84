"""Families, priors, likelihoods and schedules as names and options ready for JSON, and back."""

import dataclasses
from typing import Any

from kasuri.posteriors.base import Family
from kasuri.priors.base import Prior


def describe(thing: Any, known: tuple[type, ...] | None = None) -> dict[str, Any]:
    """Class and options of a dataclass or of a module with `options()`.

    A prior for vectors and a family behind a mask are options that are described in their turn.

    Args:
        thing: to describe.
        known: classes that can be stored; None for any.

    Examples:
        >>> import kasuri
        >>> describe(kasuri.HeNormal())
        {'class': 'HeNormal', 'options': {'gain': 2.0, 'bias_scale': 1.0}}
    """
    if known is not None and type(thing) not in known:
        raise ValueError(
            f"{thing!r} cannot be written to a file; storable are {[kind.__name__ for kind in known]}"
        )
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        options = {one.name: getattr(thing, one.name) for one in dataclasses.fields(thing)}
    else:
        options = thing.options()
    for key, value in options.items():
        if isinstance(value, Prior | Family):
            options[key] = describe(value, known)
    return {"class": type(thing).__name__, "options": options}


def classes(told: dict[str, Any]) -> list[str]:
    """Names of all classes in a description."""
    return [told["class"], *(name for one in _inner(told).values() for name in classes(one))]


def build(told: dict[str, Any], known: tuple[type, ...]) -> Any:
    """What was described, made of these classes.

    Examples:
        >>> import kasuri
        >>> build({"class": "ARD", "options": {"vectors": None}}, (kasuri.ARD,))
        ARD()
    """
    options = told["options"] | {key: build(one, known) for key, one in _inner(told).items()}
    return next(kind for kind in known if kind.__name__ == told["class"])(**options)


def _inner(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Options that are descriptions themselves."""
    options = told["options"].items()
    return {k: v for k, v in options if isinstance(v, dict) and v.keys() == {"class", "options"}}
