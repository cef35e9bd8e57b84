"""The k-tied Normal paper (Swiatkowski et al., ICML 2020) and its supplement.

Settings: docs/papers/k-tied.md. Published values: accuracy and its standard error over test
examples; the parameter counts are exact, computed from the architecture, and agree with the
rounded ones in the paper.
"""

from dataclasses import replace

from weft.experiments.networks import MLP
from weft.experiments.spec import Published
from weft.experiments.supervised import Supervised
from weft.posteriors.k_tied import KTied
from weft.posteriors.mean_field import MeanField

# every option of the paper's model selection, chosen on validation by `weft sweep`
_GRID = {
    "learning_rate": (1e-4, 3e-4, 1e-3, 3e-3),
    "prior_scale": (0.2, 0.3),
    "annealing": (5e-5, 5e-6),
}


def _published(
    neg_elbo: tuple[float, float],
    nll: tuple[float, float],
    accuracy: tuple[float, float],
    parameters: float,
) -> Published:
    return {
        "neg_elbo": neg_elbo,
        "nll": nll,
        "accuracy": accuracy,
        "parameters": (parameters, None),
    }


_MNIST = Supervised(
    name="k-tied/mnist-mlp",
    variant="mean-field",
    title="MNIST, 784-400-400-10, mean-field and k-tied posteriors (Figure 2 of the paper)",
    published=_published((0.501, 0.0061), (0.133, 0.004), (0.968, 0.0018), 957e3),
    space=_GRID,
    data="mnist",
    network=MLP(hidden=(400, 400)),
    family=MeanField(),
    estimator="shared",
    epochs=300,
    batch_size=1024,
    learning_rate=1e-3,
    falling=False,
    temperature=1.0,
    prior_scale=0.2,
    annealing=5e-5,
)

EXPERIMENTS = [
    _MNIST,
    replace(
        _MNIST,
        variant="k-tied-1",
        family=KTied(rank=1),
        published=_published((0.539, 0.0063), (0.155, 0.0043), (0.961, 0.0019), 482e3),
    ),
    replace(
        _MNIST,
        variant="k-tied-2",
        family=KTied(rank=2),
        published=_published((0.520, 0.0063), (0.129, 0.0039), (0.968, 0.0018), 484e3),
    ),
    replace(
        _MNIST,
        variant="k-tied-3",
        family=KTied(rank=3),
        published=_published((0.497, 0.006), (0.120, 0.0038), (0.969, 0.0018), 486e3),
    ),
]
