"""Is the default Bayesian network better than what people use? Plain, ensemble, dropout, kasuri.

Every method sees the same data in the same form and keeps its best validated epoch. Nothing of
the Bayesian networks is set: prior, temperature and schedule are the defaults of `kasuri.fit`, and so
is the share of pictures held out for validation.
The seeds of UCI tables count their fixed splits.
"""

from typing import Any

import kasuri
from experiments.networks import MLP
from experiments.spec import Experiment, table
from experiments.supervised import Supervised

_PICTURES: dict[str, Any] = {"options": {"scale": "standard"}, "held_out": 0.1}


_BAYESIAN: dict[str, dict[str, Any]] = {
    "mean-field": {"family": kasuri.MeanField()},
    **{f"k-tied-{k}": {"family": kasuri.KTied(rank=k)} for k in (1, 2, 3)},
}


def _contenders(data: str, width: int, dropout: float, **options: Any) -> list[Supervised]:
    base = Supervised(
        name=f"quality/{data.replace('/', '-')}",
        variant="plain",
        title="Plain network, ensemble and dropout against Bayesian networks with default settings",
        data=data,
        network=MLP((width, width)),
        **options,
    )
    usual: dict[str, dict[str, Any]] = {
        "plain": {},
        "ensemble-5": {"members": 5},
        "mc-dropout": {"network": MLP((width, width), dropout)},
    }
    return table(base, usual | _BAYESIAN)


_DEMO = Supervised(  # of `make demo`
    name="demo/digits",
    variant="plain",
    title="1,000 images of 8x8 pixels: the same network, plain and Bayesian",
    data="digits",
    outside="noise",
    network=MLP(hidden=(100, 100)),
)
EXPERIMENTS: list[Experiment] = [
    *(_DEMO, *table(_DEMO, _BAYESIAN)),
    *_contenders("digits", 100, 0.1),
    *_contenders("breast-cancer", 100, 0.1),
    *_contenders("mnist", 400, 0.3, outside="fashion-mnist", **_PICTURES),
    *_contenders("fashion-mnist", 400, 0.3, outside="mnist", **_PICTURES),
    *_contenders("uci/boston", 50, 0.1),
    *_contenders("uci/concrete", 50, 0.1),
    *_contenders("uci/energy", 50, 0.1),
]
