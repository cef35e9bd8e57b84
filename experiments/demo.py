"""What `make demo` runs: five networks on scikit-learn's bundled digits."""

from dataclasses import replace

import kasuri
from experiments.networks import MLP
from experiments.spec import Experiment
from experiments.supervised import Supervised

_BASE = Supervised(
    name="demo/digits",
    variant="plain",
    title="1,000 images of 8x8 pixels: the same network, plain and Bayesian",
    data="digits",
    outside="noise",
    network=MLP(hidden=(100, 100)),
)

EXPERIMENTS: list[Experiment] = [
    _BASE,
    replace(_BASE, variant="mean-field", family=kasuri.MeanField()),
    *(replace(_BASE, variant=f"k-tied-{k}", family=kasuri.KTied(rank=k)) for k in (1, 2, 3)),
]
