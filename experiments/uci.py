"""The UCI benchmark: nine tables, their published splits, one recipe for every table and family.

One hidden layer of 50 units and 6,000 steps (protein: 100 and 25,000), inputs and targets standardised by
what is trained on. Settings and results: docs/papers/radial-directional.md.
"""

from dataclasses import replace

from experiments import uci_published as published
from experiments.data.tables import TABLES
from experiments.spec import Experiment
from experiments.splits import Splits
from kasuri.posteriors.k_tied import KTied
from kasuri.posteriors.matrix_normal import MatrixNormal
from kasuri.posteriors.point import Point
from kasuri.posteriors.radial.family import Radial

_TITLE = "UCI {}: test log-likelihood of posteriors and of what people use, all splits at once"


def _rows(table: str) -> list[Experiment]:
    base = Splits(
        name=f"uci/{table}",
        variant="",
        title=_TITLE.format(table),
        table=table,
        hidden=100 if table == "protein" else 50,
        steps=25_000 if table == "protein" else 6_000,  # at least 40 epochs of every table
        noises=("constant", "input"),
        temperatures=(1.0, 0.3, 0.1),
    )
    ordinary = replace(base, family=Point())
    radial = replace(base, prior="radial")
    # the published estimator wants noise of one size; nothing to choose
    audited = replace(base, audit=True, noises=("constant",), temperatures=(1.0,))
    columns = published.COLUMNS[table]

    def beside(column: str) -> dict[str, tuple[float, float | None]]:
        value, error = columns[column]
        return {"nll": (-value, error)}

    return [
        replace(ordinary, variant="plain"),
        replace(ordinary, variant="ensemble-5", members=5),
        replace(
            ordinary,
            variant="mc-dropout",
            temperatures=(0.3,),
            dropouts=(0.005, 0.02, 0.1),
            published=beside("Dropout"),
        ),
        replace(base, variant="mean-field", published=beside("VI")),
        replace(base, variant="k-tied-2", family=KTied(rank=2)),
        replace(
            base, variant="k-tied-2-mixture", family=KTied(rank=2), noises=("both",), members=3
        ),
        replace(base, variant="matrix-normal", family=MatrixNormal(), published=beside("VMG")),
        replace(audited, variant="mean-field-audited"),
        replace(audited, variant="mean-field-quick-audited", steps=4_000, learning_rate=1e-3),
        replace(radial, variant="radial-row", family=Radial(grouping="row")),
        replace(radial, variant="radial-double", family=Radial(grouping="double")),
        replace(
            radial,
            variant="radial-double-published",  # start, prior and noise of the paper, nothing to choose
            family=Radial(grouping="double", factors=2, gap=0.005, min_gap=2e-3, spread=1e-4),
            prior="radial-augmented",
            noises=("gamma",),
            temperatures=(1.0,),
        ),
    ]


EXPERIMENTS: list[Experiment] = [row for table in TABLES for row in _rows(table)]
