"""What is timed (cases) and what the times should be (targets)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.contenders import CLASSES, NETWORKS, PREDICT, STEP, Contender, Run

BATCHES = 8  # different ones in turn: a network that has learned its only batch by heart is no use


@dataclass(frozen=True)
class Case:
    """One table: a kind of work, a network and a batch size.

    Args:
        kind: "step" (one training step) or "predict".
        network: name in NETWORKS.
        batch: examples per call.
        samples: draws per prediction.
    """

    kind: str
    network: str
    batch: int
    samples: int = 0

    @property
    def title(self) -> str:
        """What the table is about."""
        work = "training step" if self.kind == "step" else f"prediction with {self.samples} samples"
        return f"{work}, {self.network}, batch {self.batch}"

    def contenders(self, only_weft: bool) -> list[Contender]:
        """All that can take this network, the plain one first."""
        ours = STEP if self.kind == "step" else PREDICT
        others = [] if only_weft else peers.available()[0]
        linear = NETWORKS[self.network].linear_only
        return [one for one in [*ours, *others] if linear or not one.linear_only]

    def call(self, run: Run) -> Callable[[], Tensor]:
        """The work as a function without arguments, on data that is the same for all contenders."""
        network = NETWORKS[self.network]
        generator = torch.Generator().manual_seed(0)
        xs = torch.randn(BATCHES, self.batch, *network.input_shape, generator=generator)
        ys = torch.randint(CLASSES, (BATCHES, self.batch), generator=generator)
        turn = 0

        def call() -> Tensor:
            nonlocal turn
            x, y = xs[turn % BATCHES], ys[turn % BATCHES]
            turn += 1
            return run.step(x, y) if self.kind == "step" else run.predict(x, self.samples)

        return call

    def check(self, result: Tensor) -> None:
        """Refuse a result that shows that the work was not done."""
        if self.kind == "step":
            done = result.numel() == 1 and bool(result.isfinite().all())
        else:
            sums = result.sum(-1)
            done = result.shape == (self.batch, CLASSES) and torch.allclose(
                sums, torch.ones_like(sums), atol=1e-3
            )
        if not done:
            raise RuntimeError(f"{self.title}: not a result: {result}")


SMALL, LARGE, CONV = NETWORKS
CASES = {
    "step-400-batch-1024": Case("step", SMALL, 1024),
    "step-400-batch-128": Case("step", SMALL, 128),
    "step-2048-batch-512": Case("step", LARGE, 512),
    "step-conv-batch-128": Case("step", CONV, 128),
    "predict-400-batch-128": Case("predict", SMALL, 128, samples=32),
    "predict-400-batch-1024": Case("predict", SMALL, 1024, samples=32),
}
KINDS = ("step", "predict")


@dataclass(frozen=True)
class Target:
    """A contender's time should be at most `bound` times the plain network's."""

    case: str
    contender: str
    bound: float


TARGETS = [
    Target("step-400-batch-1024", "weft KTied(rank=2) local", 1.4),
    Target("step-400-batch-128", "weft KTied(rank=2) local", 1.8),
    Target("step-2048-batch-512", "weft KTied(rank=2) local", 1.2),
    Target("step-400-batch-1024", "weft MeanField() shared", 1.25),
    *(
        Target(case, f"weft KTied(rank=2) {estimator}", 1.3)
        for case in ("predict-400-batch-128", "predict-400-batch-1024")
        for estimator in ("shared", "local")
    ),
]
