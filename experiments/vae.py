"""The matrix-normal paper's auto-encoders on statically binarised MNIST (section 5.4, Table 3).

Settings: docs/papers/matrix-normal.md. 40 latent variables as 20 x 2 (the caption of the table says
2 x 20, which has as many numbers), 9 as 3 x 3. The paper does not say with how many draws it estimates
log-likelihoods; 5,000 here, as in the work whose set-up it follows. `-medium` and `-short` are the same
with fewer epochs, data and draws.
"""

import base64
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from tyro.conf import Fixed

import kasuri
from experiments import data as datasets
from experiments import published
from experiments.data import Dataset
from experiments.networks import auto_encoder
from experiments.spec import Experiment, Outcome, Where, form, table
from experiments.supervised import trained_numbers
from kasuri.streams import Stream, mix
from kasuri.training import Validation, constant
from kasuri.vae import VAE, DiagonalLatent, FullLatent, KTiedLatent, Latent, MatrixNormalLatent
from kasuri.vae.estimates import divergences

COLUMNS = 10  # pictures in a row of a sheet
UNITS, STEPS = 8, 9  # of a traversal
LEVELS = 16  # of grey in packed sheets: what the eye sees, at a third of the size


@dataclass(frozen=True, kw_only=True)
class Generative(Experiment):
    """A fully connected auto-encoder of pictures in black and white."""

    data: str = "static-mnist"  # name of the data set, with pixels 0 and 1
    latent: Fixed[Latent] = field(default=DiagonalLatent(40))  # family of the latent variables
    hidden: tuple[int, ...] = (300, 300, 300)  # widths of encoder and decoder, which have ELU
    epochs: int = 1000  # passes over the training data, at most
    batch_size: int = 100  # examples per step
    learning_rate: float = 5e-4  # of Adam; constant
    warm_up: int = 300  # epochs in which the weight of the KL rises from 0.01 to 1, exponentially
    # stop after so many validations without improvement, not counting the warm-up; 0 for never. There are
    # 20 validations per run
    patience: int = 2
    samples: int = 5000  # draws of the importance-weighted log-likelihood
    images: int = 0  # test pictures of the log-likelihood; 0 for all. The ELBO is that of all
    limit: int = 0  # use only so many pictures of each part; 0 for all

    def smoke(self) -> "Generative":
        """Two epochs on 200 pictures, ten draws."""
        return replace(self, epochs=2, warm_up=1, limit=200, samples=10, images=20)

    def run(self, seed: int, where: Where) -> Outcome:
        """Load, train, score the ELBO of both parts and the log-likelihood of the test part, show."""
        data = datasets.load(self.data)
        data = data.small(self.limit) if self.limit else data
        fitted = self.train(data, seed, where)
        vae: Any = fitted.objective
        validation = kasuri.vae.evaluate(
            vae, data.valid, samples=0, seed=mix(seed, Stream.VALIDATION)
        )
        metrics: dict[str, float] = {}
        if where.test:
            metrics = kasuri.vae.evaluate(
                vae,
                data.test,
                samples=self.samples,
                images=self.images or None,
                seed=mix(seed, Stream.EVALUATION),
            )
        return Outcome(
            metrics=metrics,
            validation=validation,
            history=fitted.history,
            figures={
                "note": f"Data: {data.note}." if data.note else "",
                "sheets": sheets(vae, data),
            },
            parameters=trained_numbers(vae),
            seconds=fitted.seconds,
        )

    def train(self, data: Dataset, seed: int, where: Where) -> kasuri.Fitted:
        start = mix(seed, Stream.START)
        torch.manual_seed(start)
        inputs = math.prod(data.train.x.shape[1:])
        nets = auto_encoder(inputs, self.hidden, self.latent.size, self.latent.dimensions)
        batches = math.ceil(len(data.train) / self.batch_size)
        weight = kasuri.schedules.Exponential(self.warm_up, batches, start=0.01)
        vae = VAE(*nets, self.latent, kl_weight=weight)
        return kasuri.fit(
            vae,
            data.train,
            Validation(data.valid, samples=1, patience=self.patience or None),
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            scheduler=constant,
            seed=start,
            folder=where.folder,
            show=self.bar(where),
        )


def sheets(vae: VAE, data: Dataset) -> list[dict[str, Any]]:
    """Reconstructions, draws from the prior and a traversal as pictures for the report."""
    if data.pictures is None:
        return []
    height, width = data.pictures[-2:]

    def sheet(title: str, caption: str, pictures: Tensor, columns: int) -> dict[str, Any]:
        page = kasuri.vae.sheet(pictures.reshape(-1, height, width), columns)
        return {"title": title, "caption": caption, **packed(page)}

    count = min(3, len(data.test) // COLUMNS) * COLUMNS
    x = data.test.x[:count].reshape(-1, 1, COLUMNS, height, width)
    again = kasuri.vae.reconstruct(vae, data.test.x[:count]).cpu().reshape(x.shape)
    _, spread = divergences(vae, data.test.x[:1000])
    units = spread.argsort(descending=True)[:UNITS].tolist()
    moved = kasuri.vae.traverse(vae, data.test.x[0], units=units, steps=STEPS).cpu()
    drawn = kasuri.vae.sample(vae, 40).cpu()
    numbers = ", ".join(map(str, units))
    below, means = "test pictures, and below each what E[z | x] gives", "pixel means at z ~ N(0, I)"
    rows = f"from the first test picture, one latent variable a row from -3 to 3: {numbers}"
    return [
        sheet("Reconstructions", below, torch.cat([x, again], 1), COLUMNS),
        sheet("Draws from the prior", means, drawn, COLUMNS),
        sheet("Traversals", rows, moved, STEPS),
    ]


def packed(page: Tensor) -> dict[str, Any]:
    """A picture (height, width) of values in [0, 1] for a result file: 16 levels of grey, compressed.

    Examples:
        >>> packed(torch.zeros(28, 28))["shape"]
        [28, 28]
    """
    grey = (page.double().clamp(0, 1) * (LEVELS - 1)).round() * (255 // (LEVELS - 1))
    content = bytes(grey.to(torch.uint8).flatten().tolist())
    text = base64.b64encode(zlib.compress(content, 9)).decode()
    return {"shape": list(page.shape), "pixels": text}


_LATENTS: Mapping[int, Mapping[str, Mapping[str, Latent]]] = {
    z: {
        "diagonal": {"latent": DiagonalLatent(z)},
        "matrix-normal": {"latent": MatrixNormalLatent(rows, columns)},
        "full-normal": {"latent": FullLatent(z)},
        "k-tied": {"latent": KTiedLatent(rows, columns, rank=1)},
    }
    for z, rows, columns in ((40, 20, 2), (9, 3, 3))
}
_FULL = [
    row
    for z, latents in _LATENTS.items()
    for row in table(
        Generative(
            name=f"vae/static-mnist-{z}",
            variant="",
            title=f"Binarised MNIST, auto-encoder with {z} latent variables, posteriors compared (Table 3)",
        ),
        latents,
        published.table("matrix_normal", f"static-mnist-{z}"),
    )
]
_MEDIUM: dict[str, Any] = {"epochs": 100, "warm_up": 30, "images": 1000}
_SHORT = {
    "epochs": 20,
    "warm_up": 6,
    "patience": 0,
    "limit": 20_000,
    "samples": 500,
    "images": 1000,
}
EXPERIMENTS: list[Experiment] = [
    *_FULL,
    # so close to the paper's settings that its values stay beside it
    *(replace(row, name=f"{row.name}-medium", **_MEDIUM) for row in _FULL),
    *form(_FULL, "short", **_SHORT),
]
