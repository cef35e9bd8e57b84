"""What is timed (cases) and what the times should be (targets)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks import autoencoders, contenders, peers
from benchmarks.contenders import (
    CLASSES,
    FULL,
    LOW_RANK,
    MATRIX,
    PLAIN,
    PREDICT,
    STEP,
    Contender,
    Network,
    Run,
)


def network(name: str) -> Network:
    """The network of a name."""
    return {**contenders.NETWORKS, **autoencoders.NETWORKS}[name]


BATCHES = 8  # different ones in turn: a network that has learned its only batch by heart is no use


@dataclass(frozen=True)
class Case:
    """One table: a kind of work, a network and a batch size.

    Args:
        kind: "step" (one training step), "predict", "matrix" (one training step of matrix normals,
            also in units of mean-field, and its memory), or "vae" (one training step of auto-encoders,
            also in units of independent latent variables).
        network: name in NETWORKS.
        batch: examples per call.
        samples: draws per prediction.
        besides: contenders of this case alone.
    """

    kind: str
    network: str
    batch: int
    samples: int = 0
    besides: tuple[Contender, ...] = ()

    @property
    def title(self) -> str:
        """What the table is about."""
        work = {
            "step": "training step",
            "predict": f"prediction with {self.samples} samples",
            "matrix": "training step of matrix normals",
            "vae": "training step",
        }[self.kind]
        return f"{work}, {self.network}, batch {self.batch}"

    @property
    def references(self) -> list[str]:
        """Contenders that others are compared with, besides the plain network."""
        if self.kind == "vae":
            return [autoencoders.DIAGONAL[self.network]]
        return list(MEAN_FIELD.values()) if self.kind == "matrix" else []

    def contenders(self, only_kasuri: bool) -> list[Contender]:
        """All that can take this network, the plain one first."""
        if self.kind == "vae":
            return autoencoders.CONTENDERS[self.network]
        ours = {"step": STEP, "predict": PREDICT, "matrix": [*MATRIX, *self.besides]}[self.kind]
        others = [] if only_kasuri or self.kind == "matrix" else peers.available()[0]
        linear = network(self.network).linear_only
        return [one for one in [*ours, *others] if linear or not one.linear_only]

    def batches(self) -> tuple[Tensor, Tensor]:
        """Inputs and classes, the same for all contenders."""
        shape, generator = network(self.network).input_shape, torch.Generator().manual_seed(0)
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
        if self.kind != "predict":
            done = result.numel() == 1 and bool(result.isfinite().all())
        else:
            sums = result.sum(-1)
            done = result.shape == (self.batch, CLASSES) and torch.allclose(
                sums, torch.ones_like(sums), atol=1e-3
            )
        if not done:
            raise RuntimeError(f"{self.title}: not a result: {result}")


MEAN_FIELD = {name: f"kasuri MeanField() {name}" for name in ("shared", "local")}
SMALL, LARGE, CONV, PAPER = contenders.NETWORKS
LATENT_40, LATENT_9 = autoencoders.NETWORKS
CASES = {
    "step-400-batch-1024": Case("step", SMALL, 1024),
    "step-400-batch-128": Case("step", SMALL, 128),
    "step-2048-batch-512": Case("step", LARGE, 512),
    "step-conv-batch-128": Case("step", CONV, 128),
    "predict-400-batch-128": Case("predict", SMALL, 128, samples=32),
    "predict-400-batch-1024": Case("predict", SMALL, 1024, samples=32),
    "matrix-300-batch-100": Case("matrix", PAPER, 100),
    "matrix-2048-batch-512": Case("matrix", LARGE, 512, besides=(*LOW_RANK, *FULL)),
    "matrix-conv-batch-128": Case("matrix", CONV, 128, besides=tuple(LOW_RANK)),
    "vae-40-batch-100": Case("vae", LATENT_40, 100),
    "vae-9-batch-100": Case("vae", LATENT_9, 100),
}
KINDS = ("step", "predict", "matrix", "vae")


@dataclass(frozen=True)
class Target:
    """A contender's time should be at most `bound` times that of a reference, the plain network."""

    case: str
    contender: str
    bound: float
    reference: str = PLAIN.name


TARGETS = [
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
        Target(name, one.name, autoencoders.BOUND, autoencoders.DIAGONAL[CASES[name].network])
        for name in ("vae-40-batch-100", "vae-9-batch-100")
        for one in CASES[name].contenders(only_kasuri=True)[2:4]  # matrix normal and full
    ),
]
