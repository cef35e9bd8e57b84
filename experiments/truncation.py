"""What is left of a trained posterior when its standard deviations are cut down to low rank."""

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.figures import figures
from experiments.spec import FIXED, Experiment, Outcome, Published, Where
from experiments.supervised import Supervised, trained_numbers
from kasuri.diagnostics import scale_maps, spectrum, truncate
from kasuri.objectives.elbo import ELBO
from kasuri.training.fitted import Fitted


@dataclass(frozen=True, kw_only=True)
class Truncation(Experiment):
    """The network of another experiment, its standard deviations replaced by their rank-k part.

    The network is that of `base`: taken from its checkpoint, or trained now.

    Args:
        base: the experiment that trains the network.
        rank: k; 0 leaves the posterior as it is.
        where: glob of the layers to truncate; None for all.
        floor: least standard deviation afterwards; 0 for the smallest one of the layer.
        map_of: name of the posterior whose standard deviations are shown as pictures.
    """

    base: Supervised = field(metadata=FIXED)
    rank: int = 0
    where: str | None = None
    floor: float = 0.0
    map_of: str = field(default="", metadata=FIXED)

    def smoke(self) -> "Truncation":
        """The base's smoke run."""
        return dataclasses.replace(self, base=self.base.smoke())

    def settings(self) -> dict[str, Any]:
        """Those of the base, and what is done to it."""
        mine = super().settings()
        trained = {f"base {name}": value for name, value in self.base.settings().items()}
        base = {"base": f"{self.base.name} {self.base.variant}", "data": self.base.data}
        return {**mine, **base, **trained}

    def run(self, seed: int, where: Where) -> Outcome:
        """Train or load, truncate, evaluate."""
        began = time.monotonic()
        data = self.base.load(self.base.data, self.base.options, seed)
        (fitted,) = self.base.trained(data, seed, self._beside(seed, where))
        trained = time.monotonic()
        cut = self._cut(fitted)
        valid = self.base.assess([cut], data, "valid", seed)
        test = self.base.assess([cut], data, "test", seed) if where.test else None
        done = time.monotonic()
        return Outcome(
            metrics=dict(test or {}),
            validation=dict(valid),
            history=fitted.history,
            figures=({} if test is None else figures(test, cut.objective)) | self._pictures(fitted),
            parameters=trained_numbers(cut.net),
            seconds={"total": done - began, "train": fitted.seconds, "evaluate": done - trained},
        )

    def _beside(self, seed: int, where: Where) -> Where:
        """The folder of the base's own run: runs/<experiment>/<variant>/<seed>."""
        if where.folder is None:
            return where
        runs = where.folder.parents[len(Path(self.name).parts) + 1]
        folder = runs / self.base.name / self.base.variant / str(seed)
        return dataclasses.replace(where, folder=folder)

    def _cut(self, fitted: Fitted) -> Fitted:
        """The same objective about a truncated network."""
        elbo = fitted.objective
        if not self.rank:
            return fitted
        assert isinstance(elbo, ELBO)
        net = truncate(fitted.net, self.rank, where=self.where, floor=self.floor or None)
        return dataclasses.replace(
            fitted,
            objective=ELBO(
                net,
                elbo.likelihood,
                self.base.prior(),
                num_data=elbo.num_data,
                temperature=elbo.temperature,
                kl_weight=elbo.kl_weight,
            ),
        )

    def _pictures(self, fitted: Fitted) -> dict[str, Any]:
        """Spectra and maps of the posterior before anything was cut, with the full row only."""
        if self.rank:
            return {}
        found: dict[str, Any] = {
            "spectrum": [one.as_dict() for one in spectrum(fitted.net).values()]
        }
        if self.map_of:
            found["scales"] = [scale_maps(fitted.net, self.map_of)]
        return found


def table(base: Supervised, published: Mapping[int, Published], **options: Any) -> list[Truncation]:
    """The rows full, rank 1, 2, 3 of a truncation table."""
    return [
        Truncation(
            variant=f"rank-{rank}" if rank else "full",
            base=base,
            rank=rank,
            published=published.get(rank),
            **options,
        )
        for rank in range(4)
    ]
