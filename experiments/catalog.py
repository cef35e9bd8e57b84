"""All experiments by name."""

from fnmatch import fnmatchcase

from experiments import compression, demo, k_tied, matrix_normal, quality, tempering, uci, vae
from experiments.spec import Experiment
from kasuri.checks import near_misses

ALL: tuple[Experiment, ...] = (
    *demo.EXPERIMENTS,
    *quality.EXPERIMENTS,
    *k_tied.EXPERIMENTS,
    *matrix_normal.EXPERIMENTS,
    *uci.EXPERIMENTS,
    *compression.EXPERIMENTS,
    *vae.EXPERIMENTS,
    *tempering.EXPERIMENTS,
)


def names() -> list[str]:
    """Names of the experiments, in order of declaration."""
    return list(dict.fromkeys(one.name for one in ALL))


def matching(pattern: str) -> list[str]:
    """Names that a pattern fits, or the name itself.

    Examples:
        >>> len(matching("uci/*")), matching("demo/digits")
        (9, ['demo/digits'])
    """
    found = [name for name in names() if fnmatchcase(name, pattern)]
    if not found:
        raise ValueError(f"there is no experiment {pattern!r}: {near_misses(pattern, names())}")
    return found


def variants(name: str) -> dict[str, Experiment]:
    """The variants of an experiment.

    Examples:
        >>> list(variants("demo/digits"))[:2]
        ['plain', 'mean-field']
    """
    found = {one.variant: one for one in ALL if one.name == name}
    if not found:
        raise ValueError(f"there is no experiment {name!r}: {near_misses(name, names())}")
    return found


def choose(name: str, wanted: list[str]) -> list[Experiment]:
    """Some variants of an experiment, or all of them if none is named."""
    found = variants(name)
    for one in wanted:
        if one not in found:
            raise ValueError(f"{name} has no variant {one!r}: {near_misses(one, found)}")
    return [found[one] for one in wanted] if wanted else list(found.values())
