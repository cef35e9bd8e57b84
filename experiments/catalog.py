"""All experiments by name."""

from fnmatch import fnmatchcase

from experiments import (
    compression,
    k_tied,
    matrix_normal,
    natural,
    quality,
    tempering,
    uci,
    vae,
)
from experiments.spec import Experiment
from kasuri.checks import near_misses

ALL: tuple[Experiment, ...] = (
    *quality.EXPERIMENTS,
    *natural.EXPERIMENTS,
    *k_tied.EXPERIMENTS,
    *matrix_normal.EXPERIMENTS,
    *uci.EXPERIMENTS,
    *compression.EXPERIMENTS,
    *vae.EXPERIMENTS,
    *tempering.EXPERIMENTS,
)


def names(pattern: str = "*") -> list[str]:
    """Names of the experiments that a pattern fits, in order of declaration.

    Examples:
        >>> len(names("uci/*")), names("demo/digits")
        (9, ['demo/digits'])
    """
    known = list(dict.fromkeys(experiment.name for experiment in ALL))
    matching = [name for name in known if fnmatchcase(name, pattern)]
    if not matching:
        raise ValueError(f"there is no experiment {pattern!r}: {near_misses(pattern, known)}")
    return matching


def variants(name: str, *wanted: str) -> dict[str, Experiment]:
    """The variants of an experiment by their names; all of them if none is named.

    Examples:
        >>> list(variants("demo/digits"))[:2]
        ['plain', 'mean-field']
    """
    known = {row.variant: row for row in ALL if row.name == name}
    if not known:
        raise ValueError(f"there is no experiment {name!r}: {near_misses(name, names())}")
    for variant in wanted:
        if variant not in known:
            raise ValueError(f"{name} has no variant {variant!r}: {near_misses(variant, known)}")
    return {variant: known[variant] for variant in wanted or known}
