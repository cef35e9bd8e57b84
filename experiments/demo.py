"""What `make demo` runs: five networks on scikit-learn's bundled digits."""

from dataclasses import replace

from experiments.networks import MLP
from experiments.supervised import Supervised
from kasuri.posteriors.k_tied import KTied
from kasuri.posteriors.mean_field import MeanField

_BASE = Supervised(
    name="demo/digits",
    variant="plain",
    title="1,000 images of 8x8 pixels: the same network, plain and Bayesian",
    data="digits",
    outside="noise",
    network=MLP(hidden=(100, 100)),
)

EXPERIMENTS = [
    _BASE,
    replace(_BASE, variant="mean-field", family=MeanField()),
    replace(_BASE, variant="k-tied-1", family=KTied(rank=1)),
    replace(_BASE, variant="k-tied-2", family=KTied(rank=2)),
    replace(_BASE, variant="k-tied-3", family=KTied(rank=3)),
]
