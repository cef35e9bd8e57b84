"""The k-tied Normal paper (Swiatkowski et al., ICML 2020) and its supplement.

Settings: docs/papers/k-tied.md. Every experiment has a short form of at most
ten minutes on two cores, called by its name with "-short".
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments import convergence, truncation
from experiments import k_tied_published as published
from experiments.networks import LSTM, MLP, LeNet, ResNet
from experiments.spec import Experiment, Published
from experiments.supervised import Supervised
from kasuri.likelihoods import Bernoulli
from kasuri.posteriors.base import Family
from kasuri.posteriors.k_tied import KTied
from kasuri.posteriors.mean_field import MeanField

# every option of the paper's model selection, chosen on validation by `kasuri sweep`
_GRID = {
    "learning_rate": (1e-4, 3e-4, 1e-3, 3e-3),
    "prior_scale": (0.2, 0.3),
    "annealing": (5e-5, 5e-6),
}
_FAMILIES: Mapping[str, Family] = {
    "mean-field": MeanField(mean="he"),
    "k-tied-1": KTied(rank=1, mean="he"),
    "k-tied-2": KTied(rank=2, mean="he"),
    "k-tied-3": KTied(rank=3, mean="he"),
}


def _rows(base: Supervised, values: Mapping[str, Published] | None = None) -> list[Supervised]:
    """Mean-field and k = 1, 2, 3."""
    return [
        replace(base, variant=name, family=family, published=(values or {}).get(name))
        for name, family in _FAMILIES.items()
    ]


def _short(rows: list[Supervised], **changes: Any) -> list[Supervised]:
    """The same rows with fewer data or epochs; published values would mean nothing beside them."""
    return [replace(one, name=f"{one.name}-short", published=None, **changes) for one in rows]


# --- MNIST, 784-400-400-10 (Figure 2) -----------------------------------------------------------

_PAPER = Supervised(
    name="",
    variant="",
    title="",
    space=_GRID,
    estimator="shared",
    epochs=300,
    batch_size=1024,
    falling=False,
    temperature=1.0,
    prior_scale=0.2,
    annealing=5e-5,
    keep="last",
)
_MNIST = _rows(
    replace(
        _PAPER,
        name="k-tied/mnist-mlp",
        title="MNIST, 784-400-400-10, mean-field and k-tied posteriors (Figure 2 of the paper)",
        data="mnist",
        network=MLP(hidden=(400, 400)),
        learning_rate=3e-3,
    ),
    published.MNIST_MLP,
)
# 40 batches of 512 per epoch; the KL reaches its whole weight after 40 epochs
_MNIST_SHORT = _short(
    _MNIST,
    limit=20_000,
    epochs=100,
    batch_size=512,
    annealing=6.25e-4,
    space={"learning_rate": (3e-4, 1e-3, 3e-3), "prior_scale": (0.2, 0.3)},
)

# --- IMDB, LSTM (Figure 2) ----------------------------------------------------------------------

_IMDB = _rows(
    replace(
        _PAPER,
        name="k-tied/imdb-lstm",
        title="IMDB reviews, LSTM, mean-field and k-tied posteriors (Figure 2 of the paper)",
        data="imdb",
        network=LSTM(),
        likelihood=Bernoulli,
        where="lstm",
        bias=False,
        epochs=12,
        batch_size=128,
        learning_rate=1e-3,
        patience=2,
        keep="best",
        samples=20,
    ),
    published.IMDB_LSTM,
)
# 40 batches per epoch: long enough for the KL to settle, which the full form stops too early for
_IMDB_SHORT = _short(
    _IMDB,
    options={"vocabulary": 5000, "length": 40},
    network=LSTM(vocabulary=5000, width=64),
    limit=5000,
    epochs=40,
    learning_rate=3e-3,
    annealing=1.25e-3,
    patience=0,
    keep="last",
)

# --- CIFAR, LeNet: convolutions mean-field, dense layers k-tied (Figure 2) ------------------------


def _lenet(data: str, kernel: int, values: Mapping[str, Published] | None) -> list[Supervised]:
    side = "" if kernel == 5 else f"-{kernel}x{kernel}"
    base = replace(
        _PAPER,
        name=f"k-tied/{data.replace('-', '')}-lenet{side}",
        title=f"{data.upper()}, LeNet with {kernel}×{kernel} kernels, dense layers k-tied (Figure 2)",
        data=data,
        options={"scale": "unit"},
        network=LeNet(kernel=kernel),
        where="dense",
        rest=MeanField(mean="he"),
        learning_rate=1e-3,
    )
    everywhere = replace(
        base, variant="k-tied-2-everywhere", where=None, rest=None, family=_FAMILIES["k-tied-2"]
    )
    return [*_rows(base, values), everywhere]


_LENET = [
    *_lenet("cifar-10", 5, None),
    *_lenet("cifar-10", 3, None),
    *_lenet("cifar-100", 5, published.CIFAR100_LENET),
    *_lenet("cifar-100", 3, None),
]
# 79 batches of 128 per epoch; the KL reaches its whole weight after 10 epochs
_LENET_SHORT = _short(
    _LENET,
    limit=10_000,
    epochs=20,
    batch_size=128,
    learning_rate=3e-3,
    annealing=1.25e-3,
    samples=30,
)

# --- beyond the paper: convolutions tied as well, everything else but the length by default -------

_DEFAULTS = Supervised(
    name="k-tied/everywhere",
    variant="",
    title="Fashion-MNIST, LeNet with 3×3 kernels: what tying the convolutions costs and saves",
    data="fashion-mnist",
    options={"flat": False, "scale": "standard"},
    network=LeNet((16, 32), kernel=3, hidden=128),
    family=MeanField(),
    limit=20_000,
    epochs=25,  # half of the default
    samples=30,
)
_EVERYWHERE = [
    replace(row, variant=variant)
    for row, variant in (
        (_DEFAULTS, "mean-field"),
        (replace(_DEFAULTS, where="dense", rest=MeanField(), family=KTied(rank=2)), "k-tied-2"),
        (replace(_DEFAULTS, family=KTied(rank=2)), "k-tied-2-everywhere"),
    )
]

# --- CIFAR-10, the ResNet of the supplement at an eighth of its width ---------------------------


def _resnet(name: str, prior_scale: float) -> Supervised:
    """Flipout, σ bounded by 0.2, biases ordinary, KL rising over 7 % of training."""
    return Supervised(
        name=f"k-tied/{name}",
        variant="mean-field",
        title="CIFAR-10, ResNet of an eighth of the width, mean-field (supplement)",
        data="cifar-10",
        options={"scale": "standard"},
        network=ResNet(widths=(8, 16, 32, 64)),
        family=MeanField(scale=1.2e-4, max_scale=0.2),
        bias=False,
        estimator="flipout",
        epochs=60,
        batch_size=128,
        learning_rate=1e-3,
        falling=False,
        temperature=1.0,
        prior_scale=prior_scale,
        annealing=7.5e-4,  # whole after 7 % of the batches, as in the supplement
        keep="last",
    )


_RESNETS = [_resnet("resnet-normal-prior", 1.0), _resnet("resnet-he-prior", 0.0)]
# σ starts higher and moves faster than in the supplement: 2,400 steps have to do
_RESNETS_SHORT = _short(
    _RESNETS,
    limit=5000,
    family=MeanField(scale=0.01, max_scale=0.2),
    learning_rate=2e-3,
    annealing=2e-3,
    samples=30,
)
# 9,400 steps, log σ three times as fast: long enough for σ to settle
_RESNETS_MEDIUM = [
    replace(row, name=f"{row.name[:-5]}medium", limit=20_000, spread_rate=3.0, samples=10)
    for row in _RESNETS_SHORT
]

# --- truncation after training (Table 2; supplement, Figure 2) -------------------------------------

_MAPS = {"mlp": "2.weight", "lstm": "lstm.weight_hh_l0", "lenet": "dense.0.weight"}


def _truncations() -> list[truncation.Truncation]:
    bases = [*_MNIST, *_MNIST_SHORT, *_IMDB, *_IMDB_SHORT, *_LENET, *_LENET_SHORT]
    bases = [one for one in bases if one.variant == "mean-field"]
    bases += [*_RESNETS, *_RESNETS_MEDIUM, *_RESNETS_SHORT]
    rows = []
    for base in bases:
        kind = base.name.removeprefix("k-tied/")
        rows += truncation.table(
            base,
            published.TRUNCATED.get(base.name, {}),
            name=f"k-tied/truncated-{kind}",
            title=f"{kind}: standard deviations cut to rank k after training (Table 2)",
            map_of=next((layer for part, layer in _MAPS.items() if part in kind), ""),
        )
    return rows


# --- gradient SNR and convergence (Figure 2, right) --------------------------------------------

_STEPS = convergence.Convergence(
    name="k-tied/convergence",
    variant="",
    title="MNIST, 784-400-400-10: gradient SNR and −ELBO by steps, told apart from step size (Figure 2)",
    data="mnist",
    network=MLP(hidden=(400, 400)),
    estimator="shared",
    batch_size=1024,
    learning_rate=3e-4,
    falling=False,
    temperature=1.0,
    prior_scale=0.2,
    annealing="none",
    keep="last",
)


def _convergence() -> list[Supervised]:
    rows: list[Supervised] = []
    for name, family in _FAMILIES.items():
        values = published.CONVERGENCE[name]
        rows.append(replace(_STEPS, variant=name, family=family, published=values))
    # log σ = log u + log v moves by two learning rates per step of Adam, an untied log σ by one
    rows.append(replace(rows[0], variant="mean-field-double", spread_rate=2.0, published=None))
    halved = [
        replace(row, variant=f"{row.variant}-half", spread_rate=0.5, published=None)
        for row in rows[1:4]
    ]
    return [*rows, *halved]


_CONVERGENCE = _convergence()
_CONVERGENCE_SHORT = _short(
    _CONVERGENCE, batch_size=256, steps=3000, looks=(1000, 2000, 3000), every=100
)

EXPERIMENTS: list[Experiment] = [
    *_MNIST,
    *_MNIST_SHORT,
    *_IMDB,
    *_IMDB_SHORT,
    *_LENET,
    *_LENET_SHORT,
    *_EVERYWHERE,
    *_RESNETS,
    *_RESNETS_MEDIUM,
    *_RESNETS_SHORT,
    *_truncations(),
    *_CONVERGENCE,
    *_CONVERGENCE_SHORT,
]
