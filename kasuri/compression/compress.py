"""`kasuri.compress`: a smaller network out of a posterior, and a report."""

import copy
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from kasuri.checks import is_number, one_of
from kasuri.compression import importance, probes, search
from kasuri.compression.counting import count, uses
from kasuri.compression.coupling import OUTPUTS, find_groups, heads_of, inputs_of
from kasuri.compression.decisions import STRUCTURES, Decider, sides_asked
from kasuri.compression.importance import LOG_MODE, WEIGHTS, Weight
from kasuri.compression.kept_posterior import masked_posteriors, small_posterior
from kasuri.compression.report import CompressionReport, MatrixLeft, UnitsLeft
from kasuri.compression.search import Gap, Loss, Threshold, Validation
from kasuri.compression.shrink import shrink
from kasuri.compression.units import Masks, left_of, masked_net
from kasuri.network.convert import collapse
from kasuri.network.random import require_posteriors
from kasuri.objectives.trained import Trained, objective_of


def compress(
    model: nn.Module | Trained,
    example: Any = None,
    *,
    criterion: str = "snr",
    structure: str | Collection[str] = "either",
    threshold: Threshold | None = None,
    validation: Validation | None = None,
    keep_posterior: bool | None = None,
) -> tuple[nn.Module, CompressionReport]:
    """A network with fewer units (or weights) than the Bayesian one, and a report of what was done.

    Units that the posterior does not need are set to 0 in the posterior mean (the masked network) and
    then taken out of all layers that make or read them. The small network gives the outputs of the
    masked one, in evaluation mode and up to rounding. A unit whose incoming weights are all 0 still gives
    what its bias makes of it, and that is added to the biases of the layers that read it. What cannot be
    taken out stays, and the report says why. Nothing of kasuri is in the result: it can be pickled and
    used elsewhere.

    Without an example no unit is taken out: every matrix is judged by itself, weights are set to 0 with
    certainty, and the result is the Bayesian network with the same shapes. It is a converted network in
    every respect; dropped weights get no gradient and cost no KL.

    Args:
        model: a network from `bayesianize`, trained; or its kasuri.ELBO or what kasuri.fit gave, which know
            priors and likelihood.
        example: a batch of inputs: a tensor, a tuple of arguments or a mapping of named ones.
        criterion: "snr" (signal-to-noise), "group_ard" (the same, weighted by the precisions of the other
            side), or "log_mode" for linear layers and convolutions with kasuri.Radial.
        structure: "either": a unit goes if the layer that makes it (its row), or all that read it (their
            columns), can do without it; "both": both have to agree; "rows" or "columns": one side is asked.
            A side whose weights are not random has no say. "weights": weights go one by one, and
            units only if nothing is left of their rows or columns. Without an example "weights", "rows",
            "columns", or several of these.
        threshold: a number: what is below it goes; or Gap(), Loss(tolerance, price, budget) or
            PerLayer(tolerance, price, budget) of kasuri.compression. By default Loss() with validation data,
            else Gap().
        validation: (x, y), an object with .x and .y, or a loader, if model is a kasuri.ELBO or what
            kasuri.fit gave; or a function from a network to its loss.
        keep_posterior: return a smaller Bayesian network, with the posterior of what is left. By default
            only without an example.

    Examples:
        >>> import torch, kasuri
        >>> net = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2))
        >>> bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.05, noise=0.0))
        >>> _ = bnn[0].posteriors.weight.loc.data[3:].zero_()  # seven hidden units are noise
        >>> small, report = kasuri.compress(bnn, torch.randn(8, 4), threshold=0.05)
        >>> small
        Sequential(
          (0): Linear(in_features=4, out_features=3, bias=True)
          (1): ReLU()
          (2): Linear(in_features=3, out_features=2, bias=True)
        )
        >>> report.before.parameters, report.after.parameters
        (72, 23)
    """
    keep_posterior = example is None if keep_posterior is None else keep_posterior
    if threshold is None and example is not None:
        threshold = Gap() if validation is None else Loss()
    _check(criterion, structure, threshold, validation, example)
    model = objective_of(model)
    bnn = importance.network_of(model)
    require_posteriors(bnn)
    weights = importance.matrices_of(model)
    if example is None:
        return _by_matrix(bnn, weights, criterion, structure, threshold, keep_posterior)
    assert isinstance(structure, str)
    assert threshold is not None

    # the posterior mean, which units of it go together, and how much they are needed
    plain = collapse(bnn).eval()
    probes.check_example(plain, example)
    work, sample = probes.in_double(plain, example)
    probes.check_double(work, sample)
    groups, notes = find_groups(work, sample)
    heads, inputs = heads_of(work), inputs_of(work, sample)
    statistics = importance.statistics_of(work, weights, criterion, sides_asked(structure))

    # which units go: the masked network
    free = [group for group in (*groups, *heads, *inputs) if group.obstacle is None]
    decider = Decider(work, free, statistics, structure)
    if isinstance(threshold, Gap):
        cut = search.at_gaps(decider)
    elif isinstance(threshold, Loss):
        loss = search.validation_loss(validation, model, plain)
        prices = uses(work, sample) if threshold.price == "macs" else None
        cut = search.Search(decider, threshold, loss, prices).run()
    else:
        cut = search.at_number(statistics, threshold)
    masks = decider.masks(cut.levels)
    masked = masked_net(work, masks)

    # the small network, equal to the masked one
    probed = probes.probes(work, sample)
    shrunk = shrink(masked, probed, groups, keep_posterior)
    result = _like(shrunk.net, plain)
    after = count(result, example)
    notes += [*probes.unvaried(probed), *cut.notes, *shrunk.notes]
    variational = None
    if keep_posterior:
        result, posterior_notes = small_posterior(
            masked_posteriors(bnn, masks), work, result, shrunk.gone
        )
        notes += posterior_notes
        variational = _size(bnn), _size(result)

    left = {name: torch.ones_like(p, dtype=torch.bool) for name, p in work.named_parameters()}
    for part in (left_of(work, shrunk.gone), masks):
        left |= {name: left[name] & here for name, here in part.items() if name in left}
    notes += [
        f"units of {group.name!r} stay: {group.obstacle}"
        for group in groups
        if group.obstacle not in (None, OUTPUTS)
    ]
    return result, CompressionReport(
        criterion=criterion,
        structure=structure,
        before=count(plain, example),
        after=after,
        matrices=_matrices(weights, left),
        units=tuple(
            UnitsLeft(g.name, g.size, g.size - shrunk.removed.get(g.name, 0), g.obstacle)
            for g in (*groups, *heads)
        ),
        difference=probes.distance(
            probes.outputs(masked, probed), probes.outputs(shrunk.net, probed)
        ),
        trials=tuple(cut.trials),
        loss=cut.loss,
        variational=variational,
        notes=tuple(notes),
        masks=masks,
        statistics=statistics,
        levels=cut.levels,
    )


def _by_matrix(
    bnn: nn.Module,
    weights: Mapping[str, Weight],
    criterion: str,
    structure: Any,
    threshold: Any,
    keep_posterior: bool,
) -> tuple[nn.Module, CompressionReport]:
    """Every matrix by itself: the network with certain zeros, in the same shapes."""
    if not weights:
        raise ValueError(
            "compress: only vectors of this network are random, and a vector has no rows or columns to "
            "drop; convert weight matrices as well"
        )
    kept = importance.masks_by_matrix(weights, criterion, threshold, sides_asked(structure))
    masks = {name: weights[name].view.tensor(mask) for name, mask in kept.items()}
    result = masked_posteriors(bnn, masks)
    plain = collapse(result).eval()
    return result if keep_posterior else plain, CompressionReport(
        criterion=criterion,
        structure=structure if isinstance(structure, str) else tuple(structure),
        before=count(collapse(bnn)),
        after=count(plain),
        matrices=_matrices(weights, masks),
        variational=(_size(bnn), _size(result)) if keep_posterior else None,
        masks=masks,
    )


def _check(criterion: str, structure: Any, threshold: Any, validation: Any, example: Any) -> None:
    """Refuse arguments that do not go together."""
    one_of(criterion=(criterion, importance.Criterion))
    one_by_one = STRUCTURES[2:]  # what can go without an example
    known = STRUCTURES if example is not None else one_by_one
    wanted = [structure] if isinstance(structure, str) or example is not None else [*structure]
    if not wanted or not all(part in known for part in wanted):
        raise ValueError(
            f"compress(structure={structure!r}): write one of {', '.join(map(repr, STRUCTURES))}; without an "
            "example, a batch of inputs on which the network is traced to take units out, write one or "
            f"several of {', '.join(map(repr, one_by_one))}"
        )
    if criterion == LOG_MODE and (example is None or structure == WEIGHTS):
        raise ValueError(
            f"compress(criterion={criterion!r}, structure={structure!r}): this criterion "
            'judges whole units; write structure="either" and give an example, or criterion="snr"'
        )
    is_ratio = is_number(threshold) and 0 <= threshold < float("inf")
    if not is_ratio and (example is None or not isinstance(threshold, Gap | Loss)):
        raise ValueError(
            f"compress(threshold={threshold!r}): write a number, 0 or more, below which a unit or weight "
            "goes, e.g. 0.05; or, with an example, Gap(), Loss(tolerance, price, budget) or "
            "PerLayer(tolerance, price, budget) of kasuri.compression"
        )
    if isinstance(threshold, Loss) and validation is None:
        raise ValueError(
            f"compress(threshold={threshold}): this threshold needs validation data, to measure the loss "
            "on; give a kasuri.ELBO and validation=(x, y), or as validation a function from a network to "
            "its loss"
        )


def _like(small: nn.Module, plain: nn.Module) -> nn.Module:
    """The small network in the precision and on the device of the plain one, by name."""
    kinds = {**dict(plain.named_parameters()), **dict(plain.named_buffers())}
    usual = next(iter(plain.parameters()))
    small = copy.deepcopy(small)
    for name, tensor in [*small.named_parameters(), *small.named_buffers()]:
        like = kinds.get(name, usual)
        dtype = like.dtype if tensor.is_floating_point() else None
        tensor.data = tensor.data.to(like.device, dtype)
        tensor.requires_grad_(like.requires_grad)
    for module in small.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
    return small.eval()


def _size(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def _matrices(weights: Mapping[str, Weight], left: Masks) -> tuple[MatrixLeft, ...]:
    """What is left of each matrix; tied ones have one posterior and count once."""
    once = {id(weight.posterior): name for name, weight in reversed(list(weights.items()))}
    return tuple(
        MatrixLeft.of(name, weight.view.matrix(left[name]))
        for name, weight in weights.items()
        if once[id(weight.posterior)] == name
    )
