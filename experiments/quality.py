"""Is the default Bayesian network better than what people use? Plain, ensemble, dropout, kasuri.

Every method sees the same data in the same form and keeps its best validated epoch. Nothing of
the Bayesian networks is set: prior, temperature and schedule are the defaults of `kasuri.fit`, and so
is the share of pictures held out for validation.
The seeds of UCI tables count their fixed splits.
"""

from dataclasses import replace
from typing import Any

import kasuri
from experiments.networks import MLP
from experiments.spec import Experiment
from experiments.supervised import Supervised

_PICTURES: dict[str, Any] = {"options": {"scale": "standard"}, "held_out": 0.1}


def _bayesian(base: Supervised) -> list[Experiment]:
    return [
        replace(base, variant="mean-field", family=kasuri.MeanField()),
        *(replace(base, variant=f"k-tied-{k}", family=kasuri.KTied(rank=k)) for k in (1, 2, 3)),
    ]


def _variants(data: str, width: int, dropout: float, **options: Any) -> list[Experiment]:
    base = Supervised(
        name=f"quality/{data.replace('/', '-')}",
        variant="plain",
        title="Plain network, ensemble and dropout against Bayesian networks with default settings",
        data=data,
        network=MLP((width, width)),
        **options,
    )
    return [
        base,
        replace(base, variant="ensemble-5", members=5),
        replace(base, variant="mc-dropout", network=MLP((width, width), dropout)),
        *_bayesian(base),
    ]


_DEMO = Supervised(  # of `make demo`
    name="demo/digits",
    variant="plain",
    title="1,000 images of 8x8 pixels: the same network, plain and Bayesian",
    data="digits",
    outside="noise",
    network=MLP(hidden=(100, 100)),
)
EXPERIMENTS: list[Experiment] = [
    *(_DEMO, *_bayesian(_DEMO)),
    *_variants("digits", 100, 0.1),
    *_variants("breast-cancer", 100, 0.1),
    *_variants("mnist", 400, 0.3, outside="fashion-mnist", **_PICTURES),
    *_variants("fashion-mnist", 400, 0.3, outside="mnist", **_PICTURES),
    *_variants("uci/boston", 50, 0.1),
    *_variants("uci/concrete", 50, 0.1),
    *_variants("uci/energy", 50, 0.1),
]
