"""The matrix-normal paper's auto-encoders on statically binarised MNIST (section 5.4, Table 3).

Settings: docs/papers/matrix-normal.md. 40 latent variables as 20 x 2 (the caption of the table says
2 x 20, which has as many numbers), 9 as 3 x 3. The paper does not say with how many draws it estimates
log-likelihoods; 5,000 here, as in the work whose set-up it follows. `-medium` and `-short` are the same
with fewer epochs, data and draws.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments.generative import Generative
from experiments.spec import Experiment, Published
from kasuri.vae import DiagonalLatent, FullLatent, KTiedLatent, Latent, MatrixNormalLatent


def _table(log_likelihood: float, elbo: float) -> Published:
    return {"log_likelihood": (log_likelihood, None), "elbo": (elbo, None)}


_LATENTS: Mapping[int, Mapping[str, Latent]] = {
    40: {
        "diagonal": DiagonalLatent(40),
        "matrix-normal": MatrixNormalLatent(20, 2),
        "full-normal": FullLatent(40),
        "k-tied": KTiedLatent(20, 2, rank=1),
    },
    9: {
        "diagonal": DiagonalLatent(9),
        "matrix-normal": MatrixNormalLatent(3, 3),
        "full-normal": FullLatent(9),
        "k-tied": KTiedLatent(3, 3, rank=1),
    },
}
_PUBLISHED: Mapping[int, Mapping[str, Published]] = {
    40: {
        "diagonal": _table(-89.14, -94.36),
        "matrix-normal": _table(-88.8, -94.03),
        "full-normal": _table(-87.94, -93.01),
    },
    9: {
        "diagonal": _table(-96.80, -101.19),
        "matrix-normal": _table(-96.61, -101.08),
        "full-normal": _table(-96.20, -100.87),
    },
}

_FULL = [
    Generative(
        name=f"vae/static-mnist-{z}",
        variant=variant,
        title=f"Binarised MNIST, auto-encoder with {z} latent variables, posteriors compared (Table 3)",
        latent=latent,
        published=_PUBLISHED[z].get(variant),
    )
    for z, latents in _LATENTS.items()
    for variant, latent in latents.items()
]


def _fewer(suffix: str, **changes: Any) -> list[Generative]:
    """The same rows, cut down."""
    return [replace(one, name=f"{one.name}-{suffix}", **changes) for one in _FULL]


EXPERIMENTS: list[Experiment] = [
    *_FULL,
    *_fewer("medium", epochs=100, warm_up=30, images=1000),
    *_fewer(
        "short",
        epochs=20,
        warm_up=6,
        patience=0,
        limit=20_000,
        samples=500,
        images=1000,
        published=None,
    ),
]
