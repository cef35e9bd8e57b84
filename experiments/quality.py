"""Is the default Bayesian network better than what people use? Plain, ensemble, dropout, kasuri.

Every method sees the same data in the same form and keeps its best validated epoch. Nothing of
the Bayesian networks is set: prior, temperature and schedule are the defaults of `kasuri.fit`, and so
is the share of pictures held out for validation.
The seeds of UCI tables count their fixed splits.
"""

from dataclasses import replace

from experiments.networks import MLP
from experiments.supervised import Supervised
from kasuri.posteriors.k_tied import KTied
from kasuri.posteriors.mean_field import MeanField

_TITLE = "Plain network, ensemble and dropout against Bayesian networks with default settings"


def _variants(base: Supervised, rate: float) -> list[Supervised]:
    network = base.network
    assert isinstance(network, MLP)
    return [
        replace(base, variant="plain"),
        replace(base, variant="ensemble-5", members=5),
        replace(base, variant="mc-dropout", network=replace(network, dropout=rate)),
        replace(base, variant="mean-field", family=MeanField()),
        replace(base, variant="k-tied-1", family=KTied(rank=1)),
        replace(base, variant="k-tied-2", family=KTied(rank=2)),
        replace(base, variant="k-tied-3", family=KTied(rank=3)),
    ]


def _pictures(data: str, outside: str) -> list[Supervised]:
    return _variants(
        Supervised(
            name=f"quality/{data}",
            variant="",
            title=_TITLE,
            data=data,
            options={"scale": "standard"},
            outside=outside,
            network=MLP(hidden=(400, 400)),
            held_out=0.1,
        ),
        rate=0.3,
    )


def _table(data: str, width: int = 100) -> list[Supervised]:
    short = data.replace("/", "-")
    base = Supervised(
        name=f"quality/{short}", variant="", title=_TITLE, data=data, network=MLP((width, width))
    )
    return _variants(base, rate=0.1)


EXPERIMENTS = [
    *_table("digits"),
    *_table("breast-cancer"),
    *_pictures("mnist", outside="fashion-mnist"),
    *_pictures("fashion-mnist", outside="mnist"),
    *_table("uci/boston", 50),
    *_table("uci/concrete", 50),
    *_table("uci/energy", 50),
]
