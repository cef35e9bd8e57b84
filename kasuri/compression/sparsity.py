"""Counting and dropping what a posterior does not need."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from kasuri.compression.relevance import THRESHOLD, kept, network_of
from kasuri.network.convert import replace_posteriors
from kasuri.network.estimators import check, shared
from kasuri.network.random import named_layers, named_posteriors, posterior_of
from kasuri.posteriors.base import Builder, Family, Posterior
from kasuri.posteriors.masked import Masked, masked
from kasuri.posteriors.point import PointPosterior


@dataclass(frozen=True)
class LayerSparsity:
    """What is left of one weight matrix; rows and columns of all its blocks are counted.

    Args:
        name: of the parameter.
        shape: (*blocks, out, in).
        weights: number of weights.
        weights_left: of which are left.
        rows: number of rows (outputs).
        rows_left: of which have a weight left.
        columns: number of columns (inputs).
        columns_left: of which have a weight left.
    """

    name: str
    shape: tuple[int, ...]
    weights: int
    weights_left: int
    rows: int
    rows_left: int
    columns: int
    columns_left: int

    @property
    def dropped(self) -> float:
        """The share of weights that is dropped."""
        return 1 - self.weights_left / self.weights


@dataclass(frozen=True)
class SparsityReport:
    """How much of every weight matrix is left; print it, or read its fields.

    Args:
        threshold: of the signal-to-noise ratios.
        layers: one for each weight matrix.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField(scale=0.01))
        >>> report = kasuri.sparsity(bnn)
        >>> report.total.weights, report.as_dict()["layers"][0]["name"]
        (6, 'weight')
    """

    threshold: float
    layers: tuple[LayerSparsity, ...]

    @property
    def total(self) -> LayerSparsity:
        """The sums over all layers."""
        counts = ("weights", "weights_left", "rows", "rows_left", "columns", "columns_left")
        sums = {key: sum(getattr(layer, key) for layer in self.layers) for key in counts}
        return LayerSparsity("total", (), **sums)

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        rows = [asdict(one) | {"dropped": one.dropped} for one in (*self.layers, self.total)]
        for row in rows:
            row["shape"] = list(row["shape"])
        *layers, total = rows
        return {"threshold": self.threshold, "layers": layers, "total": total}

    def table(self) -> str:
        """A table for people: all weights, weights left, share dropped, rows and columns left."""
        head = ("", "weights", "left", "dropped", "rows left", "columns left")
        lines = [
            (
                one.name,
                f"{one.weights:,}",
                f"{one.weights_left:,}",
                f"{100 * one.dropped:.1f} %",
                f"{one.rows_left:,} of {one.rows:,}",
                f"{one.columns_left:,} of {one.columns:,}",
            )
            for one in (*self.layers, self.total)
        ]
        widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if not index else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in (head, *lines)
        )

    def __str__(self) -> str:
        """The table."""
        return self.table()


def sparsity(
    model: nn.Module,
    threshold: float = THRESHOLD,
    *,
    weights: bool = True,
    rows: bool = True,
    columns: bool = True,
) -> SparsityReport:
    """How many weights, rows and columns of every matrix `sparsify` would leave.

    Args:
        model: as for `sparsify`, and so are the others.
        threshold: of signal-to-noise ratios.
        weights: drop weights one by one.
        rows: drop whole rows.
        columns: drop whole columns.

    Examples:
        >>> import torch, kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(4, 2), kasuri.MeanField(scale=0.1))
        >>> bnn.posterior("weight").loc.data = torch.tensor([[1.0, 1, 0, 0], [1, 0, 0, 0]])
        >>> print(kasuri.sparsity(bnn))
                weights  left  dropped  rows left  columns left
        weight        8     3   62.5 %     2 of 2        2 of 4
        total         8     3   62.5 %     2 of 2        2 of 4
    """
    return _report(kept(model, threshold, weights, rows, columns), threshold)


def sparsify(
    model: nn.Module,
    threshold: float = THRESHOLD,
    *,
    weights: bool = True,
    rows: bool = True,
    columns: bool = True,
) -> tuple[nn.Module, SparsityReport]:
    """A copy of the network in which irrelevant weights are 0 with certainty, and what is left.

    A weight is dropped if its own signal-to-noise ratio, or that of its row or column, is below the
    threshold. Rows and columns go one by one, the least relevant first, and the noise of those that are
    gone no longer counts against the others. Vectors (biases) stay as they are.

    The result is a converted network in every respect; dropped weights get no gradient and cost no KL (of
    correlated rows from which only single weights went, the KL is a bound that may be too high).
    An objective belongs to one network: make a new ELBO to train it further. Layers with correlated
    posteriors draw whole weights from then on (estimator "shared").

    Args:
        model: a network from `bayesianize`, trained; or its kasuri.ELBO, whose kasuri.GroupARD then says how
            rows and columns are weighted.
        threshold: of signal-to-noise ratios mean²/variance; 0.05 is noise 4.5 times the signal.
        weights: drop weights one by one.
        rows: drop whole rows (outputs).
        columns: drop whole columns (inputs).

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(4, 1), kasuri.MeanField(scale=10.0))
        >>> sparse, report = kasuri.sparsify(bnn)
        >>> report.total.weights_left, kasuri.collapse(sparse).weight.detach()
        (0, tensor([[0., 0., 0., 0.]]))
    """
    masks = kept(model, threshold, weights, rows, columns)
    net = copy.deepcopy(network_of(model))
    put_masks(
        net,
        {
            id(q): masks[name].to(q.mean.device)
            for name, q in named_posteriors(net)
            # a point at 0 is 0 already
            if name in masks and not masks[name].all() and not isinstance(q, PointPosterior)
        },
    )
    return net, _report(masks, threshold)


def put_masks(net: nn.Module, masks: Mapping[int, Tensor]) -> None:
    """Put masks, by id of the posterior, around posteriors; files store families, so around these too."""
    new: dict[str, tuple[Posterior, Builder]] = {}
    families = {
        id(posterior_of(layer, name)): (conversion, family)
        for _, layer, conversion in named_layers(net)
        for name, family in conversion.families.items()
    }
    for name, q in named_posteriors(net):
        if id(q) in masks:
            conversion, family = families[id(q)]
            posterior = masked(q, masks[id(q)])
            if isinstance(family, Family) and not isinstance(family, Masked):
                family = Masked(family=family)
            try:
                check(conversion.estimator, posterior, name, conversion.obstacle)
            except ValueError:
                conversion.estimator = shared
            new[name] = posterior, family
    replace_posteriors(net, new)


def _report(masks: dict[str, Tensor], threshold: float) -> SparsityReport:
    def count(mask: Tensor, side: Callable[[Tensor], Tensor]) -> tuple[int, int]:
        groups = side(mask)
        return groups.numel(), int(groups.sum())

    return SparsityReport(
        threshold,
        tuple(
            LayerSparsity(
                name,
                tuple(mask.shape),
                *count(mask, lambda m: m),
                *count(mask, lambda m: m.any(-1)),
                *count(mask, lambda m: m.any(-2)),
            )
            for name, mask in masks.items()
        ),
    )
