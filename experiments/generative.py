"""Variational auto-encoders: load, train, score, show."""

import dataclasses
import math
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from experiments import data as datasets
from experiments.data.dataset import Dataset
from experiments.networks import auto_encoder
from experiments.spec import FIXED, Experiment, Outcome, Where
from kasuri.objectives.schedules import Exponential, LinearOverEpochs, Schedule
from kasuri.streams import mix
from kasuri.training.defaults import constant
from kasuri.training.fit import fit
from kasuri.training.fitted import Fitted
from kasuri.vae import VAE, DiagonalLatent, Latent, evaluate, reconstruct, sample, sheet, traverse
from kasuri.vae.pictures import most_active, packed

COLUMNS = 10  # pictures in a row of a sheet
UNITS, STEPS = 8, 9  # of a traversal


@dataclass(frozen=True, kw_only=True)
class Generative(Experiment):
    """A fully connected auto-encoder of pictures in black and white.

    Args:
        data: name of the data set, with pixels 0 and 1.
        latent: family of the latent variables.
        hidden: widths of the hidden layers of encoder and decoder, which have ELU.
        epochs: passes over the training data, at most.
        batch_size: examples per step.
        learning_rate: of Adam; constant.
        annealing: shape of the weight of the KL while training warms up: exponential (from 0.01), linear
            (from 0), or the whole KL from the start.
        warm_up: epochs of annealing.
        patience: stop after so many validations without improvement, not counting the warm-up; 0 for
            never. There are 20 validations per run.
        samples: draws of the importance-weighted log-likelihood.
        images: test pictures whose log-likelihood is taken; 0 for all. The ELBO is that of all.
        limit: use only so many pictures of each part; 0 for all.
    """

    data: str = "static-mnist"
    latent: Latent = field(default=DiagonalLatent(40), metadata=FIXED)
    hidden: tuple[int, ...] = (300, 300, 300)
    epochs: int = 1000
    batch_size: int = 100
    learning_rate: float = 5e-4
    annealing: Literal["exponential", "linear", "none"] = "exponential"
    warm_up: int = 300
    patience: int = 2
    samples: int = 5000
    images: int = 0
    limit: int = 0

    def smoke(self) -> "Generative":
        """Two epochs on 200 pictures, ten draws."""
        return dataclasses.replace(self, epochs=2, warm_up=1, limit=200, samples=10, images=20)

    def run(self, seed: int, where: Where) -> Outcome:
        """Load, train, score the ELBO of both parts and the log-likelihood of the test part, show."""
        began = time.monotonic()
        data = datasets.load(self.data)
        data = data.small(self.limit) if self.limit else data
        fitted = self.train(data, seed, where)
        vae, trained = fitted.objective, time.monotonic()
        assert isinstance(vae, VAE)
        valid = evaluate(vae, data.valid, samples=0, seed=mix(seed, 6))
        found: dict[str, float] = {}
        if where.test:
            images = self.images or None
            found = evaluate(vae, data.test, samples=self.samples, images=images, seed=mix(seed, 7))
        done = time.monotonic()
        return Outcome(
            metrics=found,
            validation=valid,
            history=fitted.history,
            figures={
                "note": f"Data: {data.note}." if data.note else "",
                "sheets": sheets(vae, data),
            },
            parameters=sum(p.numel() for p in vae.parameters() if p.requires_grad),
            seconds={"total": done - began, "train": fitted.seconds, "evaluate": done - trained},
        )

    def train(self, data: Dataset, seed: int, where: Where) -> Fitted:
        """The auto-encoder: made, trained; resumed if it was interrupted."""
        torch.manual_seed(mix(seed, 0))
        inputs = math.prod(data.train.x.shape[1:])
        nets = auto_encoder(inputs, self.hidden, self.latent.size, self.latent.dimensions)
        vae = VAE(*nets, self.latent, kl_weight=self.weight(len(data.train)))
        return fit(
            vae,
            data.train,
            data.valid,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            scheduler=constant,
            patience=self.patience or None,
            samples=1,
            seed=mix(seed, 0),
            folder=where.folder,
            resume=where.folder is not None,
            show=where.show,
            title=f"{self.name} {self.variant}",
        )

    def weight(self, num_data: int) -> float | Schedule:
        """The weight of the KL."""
        per_epoch = -(-num_data // min(self.batch_size, num_data))
        if self.annealing == "exponential":
            return Exponential(self.warm_up, per_epoch, start=0.01)
        return 1.0 if self.annealing == "none" else LinearOverEpochs(self.warm_up, per_epoch)


def sheets(vae: VAE, data: Dataset) -> list[dict[str, Any]]:
    """Reconstructions, draws from the prior and a traversal as pictures for the report."""
    if data.pictures is None:
        return []
    height, width = data.pictures[-2:]

    def page(title: str, caption: str, pictures: Tensor, columns: int) -> dict[str, Any]:
        flat = pictures.reshape(-1, height, width)
        return {"title": title, "caption": caption, **packed(sheet(flat, columns))}

    count = min(3, len(data.test) // COLUMNS) * COLUMNS
    x = data.test.x[:count].reshape(-1, 1, COLUMNS, height, width)
    pairs = torch.cat([x, reconstruct(vae, data.test.x[:count]).cpu().reshape(x.shape)], 1)
    units = most_active(vae, data.test.x[:1000], UNITS)
    moved = traverse(vae, data.test.x[0], units=units, steps=STEPS).cpu()
    told = ", ".join(map(str, units))
    return [
        page(
            "Reconstructions", "test pictures, and below each what E[z | x] gives", pairs, COLUMNS
        ),
        page("Draws from the prior", "pixel means at z ~ N(0, I)", sample(vae, 40).cpu(), COLUMNS),
        page(
            "Traversals",
            f"from the first test picture, one latent variable a row from -3 to 3: {told}",
            moved,
            STEPS,
        ),
    ]
