"""What is timed (cases) and what the times should be (targets)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.contenders import (
    CLASSES,
    FULL,
    LOW_RANK,
    MATRIX,
    NETWORKS,
    PLAIN,
    PREDICT,
    STEP,
    Contender,
    Run,
    latent_contenders,
)

BATCHES = 8  # different ones in turn: a network that has learned its only batch by heart is no use
KINDS = ("step", "predict", "matrix", "vae")
MEAN_FIELD = {name: f"kasuri MeanField() {name}" for name in ("shared", "local")}


@dataclass(frozen=True)
class Case:
    """One table: a kind of work, a network and a batch size.

    Kinds are "step" (one training step), "predict", "matrix" (one training step of matrix normals, also in
    units of mean-field, and its memory), and "vae" (one training step of auto-encoders, also in units of
    independent latent variables).
    """

    kind: str
    network: str  # name in NETWORKS
    batch: int  # examples per call
    ours: list[Contender]  # of kasuri, the plain network first
    references: tuple[str, ...] = ()  # others are compared with these, besides the plain network
    samples: int = 0  # draws per prediction

    @property
    def title(self) -> str:
        work = {
            "predict": f"prediction with {self.samples} samples",
            "matrix": "training step of matrix normals",
        }.get(self.kind, "training step")
        return f"{work}, {self.network}, batch {self.batch}"

    def contenders(self) -> list[Contender]:
        if self.kind in ("matrix", "vae"):
            return self.ours
        linear = NETWORKS[self.network].linear_only
        others = [peer for peer in peers.available() if linear or not peer.linear_only]
        return [*self.ours, *others]

    def batches(self) -> tuple[Tensor, Tensor]:
        """Inputs and classes, the same for all contenders."""
        shape, generator = NETWORKS[self.network].input_shape, torch.Generator().manual_seed(0)
        xs = torch.randn(BATCHES, self.batch, *shape, generator=generator)
        if self.kind == "vae":  # black and white, one pixel in six white
            xs = (xs > 1).float()
        return xs, torch.randint(CLASSES, (BATCHES, self.batch), generator=generator)

    def call(self, run: Run) -> Callable[[], Tensor]:
        """The work as a function without arguments."""
        xs, ys = self.batches()
        turn = 0

        def call() -> Tensor:
            nonlocal turn
            x, y = xs[turn % BATCHES], ys[turn % BATCHES]
            turn += 1
            return run.predict(x, self.samples) if self.kind == "predict" else run.step(x, y)

        return call

    def check(self, result: Tensor) -> None:
        """Refuse a result that shows that the work was not done."""
        if self.kind == "predict":
            ones = torch.ones(self.batch)
            done = result.shape == (self.batch, CLASSES)
            done = done and torch.allclose(result.sum(-1), ones, atol=1e-3)
        else:
            done = result.numel() == 1 and bool(result.isfinite().all())
        if not done:
            raise RuntimeError(f"{self.title}: not a result: {result}")


def _matrix(network: str, batch: int, *besides: Contender) -> Case:
    return Case("matrix", network, batch, [*MATRIX, *besides], tuple(MEAN_FIELD.values()))


def _auto_encoder(network: str, rows: int, columns: int) -> Case:
    ours = latent_contenders(rows, columns)
    return Case("vae", network, 100, ours, (ours[1].name,))


SMALL, LARGE, CONV, PAPER, LATENT_40, LATENT_9 = NETWORKS
CASES = {
    "step-400-batch-1024": Case("step", SMALL, 1024, STEP),
    "step-400-batch-128": Case("step", SMALL, 128, STEP),
    "step-2048-batch-512": Case("step", LARGE, 512, STEP),
    "step-conv-batch-128": Case("step", CONV, 128, STEP),
    "predict-400-batch-128": Case("predict", SMALL, 128, PREDICT, samples=32),
    "predict-400-batch-1024": Case("predict", SMALL, 1024, PREDICT, samples=32),
    "matrix-300-batch-100": _matrix(PAPER, 100),
    "matrix-2048-batch-512": _matrix(LARGE, 512, *LOW_RANK, *FULL),
    "matrix-conv-batch-128": _matrix(CONV, 128, *LOW_RANK),
    "vae-40-batch-100": _auto_encoder(LATENT_40, 20, 2),
    "vae-9-batch-100": _auto_encoder(LATENT_9, 3, 3),
}


@dataclass(frozen=True)
class Target:
    """A contender's time should be at most `bound` times that of a reference, the plain network."""

    case: str
    contender: str
    bound: float
    reference: str = PLAIN.name


TARGETS = [
    Target("step-400-batch-128", "kasuri KTied(rank=2) natural", 1.6),
    Target("step-400-batch-1024", "kasuri KTied(rank=2) natural", 1.25),
    Target("step-2048-batch-512", "kasuri KTied(rank=2) natural", 1.12),
    Target("step-400-batch-1024", "kasuri KTied(rank=2) local", 1.4),
    Target("step-400-batch-128", "kasuri KTied(rank=2) local", 1.8),
    Target("step-2048-batch-512", "kasuri KTied(rank=2) local", 1.2),
    Target("step-400-batch-1024", "kasuri MeanField() shared", 1.25),
    *(
        Target(case, f"kasuri KTied(rank=2) {estimator}", 1.3)
        for case in ("predict-400-batch-128", "predict-400-batch-1024")
        for estimator in ("shared", "local")
    ),
    Target("matrix-300-batch-100", "kasuri MatrixNormal() local", 2.0, MEAN_FIELD["local"]),
    *(
        Target(name, contender.name, 1.3, CASES[name].references[0])
        for name in ("vae-40-batch-100", "vae-9-batch-100")
        for contender in CASES[name].ours[2:4]  # matrix normal and full
    ),
]
