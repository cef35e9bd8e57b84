"""The training loop."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from kasuri.inputs import to_device
from kasuri.network.random import named_posteriors
from kasuri.objectives.elbo import ELBO, Objective, Terms
from kasuri.objectives.temperature import Tempering, is_better
from kasuri.posteriors.base import Posterior
from kasuri.streams import Stream, mix, reseed_global
from kasuri.training import checkpoint, defaults
from kasuri.training.batches import Source, hold_out
from kasuri.training.callbacks import Bar, Callback, Row
from kasuri.training.checkpoint import CheckpointError
from kasuri.training.distributed import Processes, parallel
from kasuri.training.interrupts import Interrupts
from kasuri.training.nonfinite import NonFiniteLoss, explain
from kasuri.training.validation import Validation, examine

_SYNCHRONISE = 16  # steps between asking the other processes whether anyone was told to stop


@dataclass
class Position:
    """Where a run is: everything that changes besides parameters, optimiser and schedule."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    seconds: float = 0.0
    epoch_began: float = 0.0
    history: list[Row] = field(default_factory=list)
    lowest: float = float("inf")
    best_epoch: int = 0
    stale: int = 0


@dataclass
class Run:
    """One training run: its parts, its position, and the loop over epochs and batches."""

    objective: Objective
    train: Source
    valid: tuple[Any, Tensor] | None
    validation: Validation
    optimiser: Optimizer
    scheduler: LRScheduler
    epochs: int
    seed: int
    callbacks: Sequence[Callback] = ()
    group: Processes = field(default_factory=Processes)
    folder: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    at: Position = field(default_factory=Position)
    best_state: dict[str, Tensor] | None = None
    best_losses: Tensor | None = None
    saved_at: float = field(default_factory=time.monotonic)
    scores: Row = field(default_factory=dict)  # of the last validation, for the progress bar

    def __post_init__(self) -> None:
        """Take a random but fixed part of the validation data, large enough to tell epochs apart."""
        rows = defaults.ROWS * (1 if isinstance(self.objective, ELBO) else self.validation.samples)
        if self.valid is not None and rows < len(self.valid[1]):
            self.valid = hold_out(self.valid, rows / len(self.valid[1]), self.seed)[1]
        if self.valid is not None and self.tempering is not None:
            self.tempering.rise(self.epochs * len(self.train))

    def __call__(self, bar: Bar, stop: Interrupts) -> bool:
        """Train to the end; False if it was asked to stop before."""
        model = parallel(self.objective, self.group)
        began = time.monotonic() - self.at.seconds
        patience = self.validation.patience or math.inf
        while self.at.epoch < self.epochs and self.at.stale < patience:
            self.objective.train()
            for x, y in self.train.epoch(self.at.epoch, start=self.at.batch):
                self.step(model, x, y)
                bar.step(self.at.step, self.numbers)
                self.at.seconds = time.monotonic() - began
                # several processes ask each other now and then, and all stop after the same step
                is_time = self.group.world == 1 or self.at.step % _SYNCHRONISE == 0
                if is_time and self.group.any(stop.asked):
                    self.save()
                    return False
            self.end_epoch()
            self.at.seconds = time.monotonic() - began
            if time.monotonic() - self.saved_at >= checkpoint.EVERY:
                self.save()
        self.save()
        return not self.group.any(stop.asked)  # asked during the last validation

    def step(self, model: nn.Module, x: Any, y: Tensor) -> None:
        """One step of the optimiser; its noise depends on (seed, step, process) alone."""
        x, y = to_device(x, self.device), y.to(self.device)
        self.draw_again()
        terms: Terms = model(x, y, step=self.at.step)
        numbers = [float(term.detach()) for term in terms]
        if not math.isfinite(numbers[0]):
            self.fail(numbers[0], x, y)
        self.descend(terms)
        if self.objective.update(x, y):
            self.group.level(self.objective.likelihood)
        self.at.sums = [a + b for a, b in zip(self.at.sums, numbers, strict=True)]
        self.at.batch += 1
        self.at.step += 1
        self.look()

    def look(self) -> None:
        """Now and then, while the temperature is rising, measure how good the posterior under it is."""
        tempering = self.tempering
        if tempering is None or self.valid is None or not tempering.is_looking(self.at.step):
            return
        (x, y), seed = self.valid, mix(self.seed, Stream.VALIDATION)
        losses, _ = self.group.from_first(
            lambda: examine(self.objective, x, y, defaults.LOOK_SAMPLES, seed)
        )
        tempering.update(losses, self.at.step)

    def descend(self, terms: Terms) -> None:
        """Change the parameters: gradients, callbacks, optimiser, schedule."""
        self.optimiser.zero_grad()
        terms.loss.backward()
        for callback in self.callbacks:
            callback.on_step(self.objective, self.at.step, Terms(*(t.detach() for t in terms)))
        self.optimiser.step()
        self.scheduler.step()

    @property
    def device(self) -> torch.device:
        return next(self.objective.parameters()).device

    def draw_again(self) -> None:
        """Begin the noise of this step, from the start however often it is asked for."""
        reseed_global(mix(self.seed, Stream.NOISE, self.at.step, self.group.rank), self.device)

    def end_epoch(self) -> None:
        """Averages, validation, temperature and history of the epoch that just ended."""
        at = self.at
        at.epoch, count, at.batch = at.epoch + 1, at.batch, 0
        loss, nll, kl = self.group.average([value / max(count, 1) for value in at.sums])
        row: Row = {"epoch": at.epoch, "step": at.step, "loss": loss, "nll": nll, "kl": kl}
        row["learning_rate"] = float(self.optimiser.param_groups[0]["lr"])
        row |= {name: value(at.step) for name, value in self.objective.scheduled().items()}
        is_due = at.epoch % max(1, self.epochs // defaults.CHECKS) == 0 or at.epoch == self.epochs
        if self.valid is not None and is_due:
            row |= self.check(*self.valid)
        row["seconds"], at.epoch_began = at.seconds - at.epoch_began, at.seconds
        at.sums = [0.0, 0.0, 0.0]
        at.history.append(row)
        for callback in self.callbacks:
            callback.on_epoch(self.objective, row)

    def check(self, x: Any, y: Tensor) -> Row:
        """Validation: keep the best state, count towards early stopping, move the temperature."""
        seed, samples = mix(self.seed, Stream.VALIDATION), self.validation.samples
        losses, scores = self.group.from_first(lambda: examine(self.objective, x, y, samples, seed))
        self.at.stale = 0 if self.objective.is_warming_up(self.at.step) else self.at.stale + 1
        loss = float(losses.double().mean())
        if loss < self.at.lowest:
            self.at.lowest, self.at.stale, self.best_losses = loss, 0, losses
        # the newest state, unless the best so far is better by more than a standard error: with
        # few validation data an early epoch is soon the luckiest, and rates fall for a reason
        best = None if self.validation.keep == "last" else self.best_losses
        if best is not None and not is_better(best, losses):
            self.at.best_epoch = self.at.epoch
            self.best_state = {k: v.clone() for k, v in self.objective.state_dict().items()}
        self.scores = scores
        return {f"valid_{name}": value for name, value in scores.items()}

    @property
    def tempering(self) -> Tempering | None:
        """The temperature, if it is being chosen."""
        temperature = self.objective.scheduled().get("temperature")
        return temperature if isinstance(temperature, Tempering) else None

    def numbers(self) -> Row:
        """What the progress bar shows: means of this epoch so far, and the last validation."""
        means = [total / max(self.at.batch, 1) for total in self.at.sums]
        shown = dict(zip(("loss", "nll", "kl"), means, strict=True))
        return shown | {name: score for name, score in self.scores.items() if name not in shown}

    def fail(self, loss: float, x: Any, y: Tensor) -> NoReturn:
        """Stop at a loss that is not a number, before it reaches any parameter or file."""
        rate = float(self.optimiser.param_groups[0]["lr"])
        self.draw_again()
        note = "" if self.folder is None else f". The checkpoint in {self.folder} is untouched"
        raise NonFiniteLoss(
            f"the loss is {loss} at step {self.at.step} (epoch {self.at.epoch + 1}, batch "
            f"{self.at.batch + 1}): {explain(self.objective, x, y, rate)}{note}"
        )

    def posteriors(self) -> Iterator[tuple[str, Posterior]]:
        """All posteriors of the network by name; none of an ordinary one."""
        return named_posteriors(self.objective.net)

    def place(self) -> str:
        """Epoch and step that were reached."""
        return f"epoch {min(self.at.epoch + 1, self.epochs)}, step {self.at.step}"

    def hint(self) -> str:
        """How to go on."""
        stopped = f"training stopped in {self.place()}"
        if self.folder is None:
            return f"{stopped}; with folder= kasuri.fit could go on"
        return f"{stopped}; the same call with folder={str(self.folder)!r} goes on"

    def save(self) -> None:
        """Replace the checkpoint; only the first process writes."""
        self.saved_at = time.monotonic()
        if self.folder is None or not self.group.is_first:
            return
        tempering = self.tempering
        checkpoint.write(
            self.folder,
            {
                "settings": self.settings,
                "position": asdict(self.at),
                "objective": self.objective.state_dict(),
                "best": self.best_state,
                "best losses": self.best_losses,
                "optimizer": self.optimiser.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "callbacks": [[type(c).__name__, c.state_dict()] for c in self.callbacks],
                "temperature": None if tempering is None else tempering.state_dict(),
                "reused": [name for name, q in self.posteriors() if q.is_reused],
            },
        )

    def restore(self, saved: dict[str, Any]) -> None:
        """Take up the run of the folder's checkpoint."""
        assert self.folder is not None
        if saved["format"] == 1:
            saved = checkpoint.from_0_2(saved, self.objective, self.optimiser, self.settings)
        then = saved["settings"] | {"callbacks": [name for name, _ in saved["callbacks"]]}
        changed = [
            f"{key}: {then.get(key)} then, {now} now"
            for key, now in self.settings.items()
            if then.get(key) != now
        ]
        if changed:
            raise CheckpointError(
                f"{self.folder} has a run with other settings ({'; '.join(changed)}); use the same "
                "ones, or another folder"
            )
        self.objective.load_state_dict(saved["objective"])
        self.optimiser.load_state_dict(saved["optimizer"])
        self.scheduler.load_state_dict(saved["scheduler"])
        for callback, (_, state) in zip(self.callbacks, saved["callbacks"], strict=True):
            callback.load_state_dict(state)
        if (tempering := self.tempering) is not None:
            tempering.load_state_dict(saved["temperature"])
        for name, posterior in self.posteriors():
            posterior.is_reused = name in saved.get("reused", ())
        self.best_state, self.best_losses = saved["best"], saved["best losses"]
        self.at = Position(**saved["position"])
