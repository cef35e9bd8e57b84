"""The k-tied Normal paper (Swiatkowski et al., ICML 2020) and its supplement.

Settings: docs/papers/k-tied.md. Every experiment has a short form of at most
ten minutes on two cores, called by its name with "-short".
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tyro.conf import Fixed

import kasuri
from experiments import published
from experiments.convergence import Convergence
from experiments.networks import LSTM, MLP, LeNet, ResNet
from experiments.spec import Experiment, Outcome, Where, form, table
from experiments.supervised import Supervised
from kasuri import KTied, MeanField
from kasuri.diagnostics import spectrum, truncate


@dataclass(frozen=True, kw_only=True)
class Truncation(Experiment):
    """The network of another experiment, its standard deviations replaced by their rank-k part."""

    base: Fixed[Supervised]  # trains the network, or has its checkpoint
    rank: int = 0  # k; 0 leaves the posterior as it is

    def smoke(self) -> "Truncation":
        return replace(self, base=self.base.smoke())

    def settings(self) -> dict[str, Any]:
        of_base = {f"base {name}": value for name, value in self.base.settings().items()}
        base = {"base": f"{self.base.name} {self.base.variant}", "data": self.base.data}
        return {**super().settings(), **base, **of_base}

    def run(self, seed: int, where: Where) -> Outcome:
        """That of the base, cut before it is evaluated."""
        trained: list[kasuri.Fitted] = []

        def cut(fitted: kasuri.Fitted) -> kasuri.Fitted:
            trained.append(fitted)
            return self._truncated(fitted) if self.rank else fitted

        outcome = self.base.run_changed(seed, self._where_of_base(seed, where), cut)
        if self.rank:
            return outcome
        layers = [layer.as_dict() for layer in spectrum(trained[0].net).values()]
        return replace(outcome, figures=outcome.figures | {"spectrum": layers})

    def _where_of_base(self, seed: int, where: Where) -> Where:
        """The folder of the base's own run: runs/<experiment>/<variant>/<seed>."""
        if where.folder is None:
            return where
        runs = where.folder.parents[len(Path(self.name).parts) + 1]
        folder = runs / self.base.name / self.base.variant / str(seed)
        return replace(where, folder=folder)

    def _truncated(self, fitted: kasuri.Fitted) -> kasuri.Fitted:
        elbo: Any = fitted.objective
        net = truncate(fitted.net, self.rank)
        objective = kasuri.ELBO(
            net,
            elbo.likelihood,
            self.base.prior(),
            num_data=elbo.num_data,
            temperature=elbo.temperature,
            kl_weight=elbo.kl_weight,
        )
        return dataclasses.replace(fitted, objective=objective)


_FAMILIES: Mapping[str, Mapping[str, kasuri.Family]] = {
    "mean-field": {"family": MeanField(mean="he")},
    **{f"k-tied-{k}": {"family": KTied(rank=k, mean="he")} for k in (1, 2, 3)},
}


_published = partial(published.table, "k_tied")
_PAPER = Supervised(
    name="",
    variant="",
    title="",
    space={  # every option of the paper's model selection, chosen on validation by `kasuri sweep`
        "learning_rate": (1e-4, 3e-4, 1e-3, 3e-3),
        "prior_scale": (0.2, 0.3),
        "annealing": (5e-5, 5e-6),
    },
    estimator="shared",
    epochs=300,
    batch_size=1024,
    falling=False,
    temperature=1.0,
    prior_scale=0.2,
    annealing=5e-5,
    keep="last",
)

# --- MNIST, 784-400-400-10 (Figure 2)

_MNIST = table(
    replace(
        _PAPER,
        name="k-tied/mnist-mlp",
        title="MNIST, 784-400-400-10, mean-field and k-tied posteriors (Figure 2 of the paper)",
        data="mnist",
        network=MLP(hidden=(400, 400)),
        learning_rate=3e-3,
    ),
    _FAMILIES,
    _published("mnist-mlp"),
)
# 40 batches of 512 per epoch; the KL reaches its whole weight after 40 epochs
_MNIST_SHORT = form(
    _MNIST,
    "short",
    limit=20_000,
    epochs=100,
    batch_size=512,
    annealing=6.25e-4,
    space={"learning_rate": (3e-4, 1e-3, 3e-3), "prior_scale": (0.2, 0.3)},
)

# --- IMDB, LSTM (Figure 2)

_IMDB = table(
    replace(
        _PAPER,
        name="k-tied/imdb-lstm",
        title="IMDB reviews, LSTM, mean-field and k-tied posteriors (Figure 2 of the paper)",
        data="imdb",
        network=LSTM(),
        likelihood=kasuri.Bernoulli,
        where="lstm",
        bias=False,
        epochs=12,
        batch_size=128,
        learning_rate=1e-3,
        patience=2,
        keep="best",
        samples=20,
    ),
    _FAMILIES,
    _published("imdb-lstm"),
)
# 40 batches per epoch: long enough for the KL to settle, which the full form stops too early for
_IMDB_SHORT = form(
    _IMDB,
    "short",
    options={"vocabulary": 5000, "length": 40},
    network=LSTM(vocabulary=5000, width=64),
    limit=5000,
    epochs=40,
    learning_rate=3e-3,
    annealing=1.25e-3,
    patience=0,
    keep="last",
)

# --- CIFAR, LeNet: convolutions mean-field, dense layers k-tied (Figure 2)


def _lenet(data: str, kernel: int) -> list[Supervised]:
    side = "" if kernel == 5 else f"-{kernel}x{kernel}"
    name = f"{data.replace('-', '')}-lenet{side}"
    base = replace(
        _PAPER,
        name=f"k-tied/{name}",
        title=f"{data.upper()}, LeNet with {kernel}×{kernel} kernels, dense layers k-tied (Figure 2)",
        data=data,
        options={"scale": "unit"},
        network=LeNet(kernel=kernel),
        where="dense",
        rest=MeanField(mean="he"),
        learning_rate=1e-3,
    )
    everywhere = {**_FAMILIES["k-tied-2"], "where": None, "rest": None}
    values = _published(name) if data == "cifar-100" else None
    return table(base, {**_FAMILIES, "k-tied-2-everywhere": everywhere}, values)


_CIFAR10 = [row for kernel in (5, 3) for row in _lenet("cifar-10", kernel)]
_LENET = [*_CIFAR10, *_lenet("cifar-100", kernel=5)]
# 79 batches of 128 per epoch; the KL reaches its whole weight after 10 epochs
_LENET_SHORT = form(
    _CIFAR10,
    "short",
    limit=10_000,
    epochs=20,
    batch_size=128,
    learning_rate=3e-3,
    annealing=1.25e-3,
    samples=30,
)

# --- beyond the paper: convolutions tied as well, everything else but the length by default

_DEFAULTS = Supervised(
    name="k-tied/everywhere",
    variant="mean-field",
    title="Fashion-MNIST, LeNet with 3×3 kernels: what tying the convolutions costs and saves",
    data="fashion-mnist",
    options={"flat": False, "scale": "standard"},
    network=LeNet((16, 32), kernel=3, hidden=128),
    family=MeanField(),
    limit=20_000,
    epochs=25,  # half of the default
    samples=30,
)
_TIED = replace(_DEFAULTS, variant="k-tied-2-everywhere", family=KTied(rank=2))
_EVERYWHERE = [
    _DEFAULTS,
    replace(_TIED, variant="k-tied-2", where="dense", rest=MeanField()),
    _TIED,
]

# --- CIFAR-10, the ResNet of the supplement at an eighth of its width


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
_RESNETS_SHORT = form(
    _RESNETS,
    "short",
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

# --- truncation (Table 2; supplement, Figure 2)

_TRUNCATED = ("mnist-mlp", "imdb-lstm", "cifar100-lenet", "resnet-he-prior")  # published


def _truncations(base: Supervised) -> list[Truncation]:
    """Full, rank 1, 2, 3."""
    kind = base.name.removeprefix("k-tied/")
    full = Truncation(
        name=f"k-tied/truncated-{kind}",
        variant="full",
        title=f"{kind}: standard deviations cut to rank k after training (Table 2)",
        base=base,
    )
    ranks = {"full": 0, "rank-1": 1, "rank-2": 2, "rank-3": 3}
    values = _published(f"truncated-{kind}") if kind in _TRUNCATED else None
    return table(full, {name: {"rank": rank} for name, rank in ranks.items()}, values)


_MEAN_FIELD = [
    row
    for row in (*_MNIST, *_MNIST_SHORT, *_IMDB, *_IMDB_SHORT, *_LENET, *_LENET_SHORT)
    if row.variant == "mean-field"
]

# --- gradient SNR and convergence (Figure 2, right)

_CONVERGENCE = table(
    Convergence(
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
    ),
    _FAMILIES,
    _published("convergence"),
)
# log σ = log u + log v moves by two learning rates per step of Adam, an untied log σ by one
_CONVERGENCE += [
    replace(_CONVERGENCE[0], variant="mean-field-double", spread_rate=2.0, published=None),
    *(
        replace(row, variant=f"{row.variant}-half", spread_rate=0.5, published=None)
        for row in _CONVERGENCE[1:]
    ),
]
_CONVERGENCE_SHORT = form(
    _CONVERGENCE, "short", batch_size=256, steps=3000, looks=(1000, 2000, 3000), every=100
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
    *(
        row
        for base in (*_MEAN_FIELD, *_RESNETS, *_RESNETS_MEDIUM, *_RESNETS_SHORT)
        for row in _truncations(base)
    ),
    *_CONVERGENCE,
    *_CONVERGENCE_SHORT,
]
