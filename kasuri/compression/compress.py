"""`kasuri.compress`: a smaller network out of a posterior, and a report."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.checks import told
from kasuri.compression.bits import bit_widths
from kasuri.compression.checking import checked
from kasuri.compression.counting import count, uses
from kasuri.compression.criteria import random_weights
from kasuri.compression.decisions import Rule
from kasuri.compression.graph import Group, find_groups
from kasuri.compression.heads import shrink_heads
from kasuri.compression.inputs import input_readers
from kasuri.compression.latency import latency as measured
from kasuri.compression.layers import OUT
from kasuri.compression.masking import masked_net, masked_posteriors
from kasuri.compression.options import check_options
from kasuri.compression.posterior import indexed, small_posterior
from kasuri.compression.probing import check_example, probes, unvaried
from kasuri.compression.relevance import network_of
from kasuri.compression.report import CompressionReport, Histogram, Units
from kasuri.compression.running import in_double, uncompiled
from kasuri.compression.shrinking import TOLERANCE, Shrunk, distance, outputs, shrink
from kasuri.compression.slimming import slim
from kasuri.compression.task import Task, Validation, levels_of, statistics_of
from kasuri.compression.tuning import finetune as tuned
from kasuri.network.convert import collapse
from kasuri.network.random import require_posteriors
from kasuri.objectives.trained import Trained, objective_of


def compress(
    model: nn.Module | Trained,
    example: Any,
    *,
    criterion: str = "snr",
    threshold: float | str = "auto",
    structure: str = "both",
    agree: str = "both",
    validation: Validation | None = None,
    tolerance: float = 0.01,
    price: str = "weights",
    budget: int | None = None,
    keep_posterior: bool = False,
    rank: int | str | None = None,
    floor: float | None = None,
    finetune: Mapping[str, Any] | None = None,
    calls: int = 20,
) -> tuple[nn.Module, CompressionReport]:
    """A plain network with fewer units than the Bayesian one, and a report of what was done.

    Units that the posterior does not need are set to 0 in the posterior mean (the masked network) and
    then taken out of all layers that make or read them. The small network gives the outputs of the
    masked one, in evaluation mode and up to rounding. A unit whose incoming weights are all 0 still gives
    what its bias makes of it, and that is added to the biases of the layers that read it. What cannot be
    taken out stays, and the report says why. Nothing of kasuri is in the result: it can be pickled and
    used elsewhere.

    Args:
        model: a network from `bayesianize`, trained; or its kasuri.ELBO or what kasuri.fit gave, which know
            priors and likelihood.
        example: a batch of inputs: a tensor, a tuple of arguments or a mapping of named ones.
        criterion: "snr" (signal-to-noise), "ard", "group_ard", "kl" (share in the KL; needs the ELBO),
            or for kasuri.Radial "log_mode" and "product_mode".
        threshold: "gap" for the largest gap in the sorted statistic, on each side of each layer; "loss" for
            the most that validation data allow, with one level for the whole network; "layers" for the same
            with a level for every layer, found in steps, which takes longer and leaves less; "auto" for
            "loss" if there are validation data, else "gap"; or a number: what is below it goes.
        structure: "both" asks the layer that makes a unit (rows) and those that read it (columns); "rows" or
            "columns" asks one side; "weights" drops weights one by one, and units only if nothing is
            left of their rows or columns.
        agree: with "both", whether "both" sides have to say so, or "either". Where one side has no statistic
            the other decides.
        validation: (x, y), if model is a kasuri.ELBO; or a function from a network to its loss.
        tolerance: by how much that loss may grow: nats per example, with (x, y).
        price: with "layers", what units should save: "weights", or "macs" (multiply-accumulates).
        budget: with "layers", how many weights that are not 0 (or, by price, multiply-accumulates with
            these) may be left at most, whatever the loss; within the tolerance more may go.
        keep_posterior: return a smaller Bayesian network, with the posterior of what is left.
        rank: with keep_posterior, tie standard deviations of mean-field matrices to this rank ("auto" to
            have it chosen), as `kasuri.diagnostics.tie` does.
        floor: with keep_posterior, matrices and vectors with smaller standard deviations only become points.
        finetune: options of kasuri.fit, `train` among them, to train the small plain network further.
        calls: of both networks to measure latency; 0 for none.

    Examples:
        >>> import kasuri
        >>> net = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2))
        >>> bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.05, noise=0.0))
        >>> _ = bnn[0].posterior("weight").loc.data[3:].zero_()  # seven hidden units are noise
        >>> _ = bnn[2].posterior("weight").loc.data[:, 3:].zero_()
        >>> small, report = kasuri.compress(bnn, torch.randn(8, 4), threshold=0.05, calls=0)
        >>> small
        Sequential(
          (0): Linear(in_features=4, out_features=3, bias=True)
          (1): ReLU()
          (2): Linear(in_features=3, out_features=2, bias=True)
        )
        >>> report.before.parameters, report.after.parameters
        (72, 23)
    """
    check_options(
        criterion,
        threshold,
        structure,
        validation,
        keep_posterior,
        rank,
        floor,
        finetune,
        price,
        budget,
        tolerance,
        calls,
    )
    rule = Rule(structure, agree)
    model = uncompiled(objective_of(model))
    bnn = network_of(model)
    require_posteriors(bnn)
    plain = collapse(bnn).eval()
    check_example(plain, example)
    work = copy.deepcopy(plain).cpu().double()
    sample = in_double(_on_cpu(example))
    _check_double(work, sample)
    probed = probes(work, sample)
    groups, notes = find_groups(work, sample)
    groups = checked(work, probed, groups)
    notes += unvaried(probed)
    weights = random_weights(model)
    statistics = statistics_of(work, weights, criterion, rule)
    inputs = input_readers(work, sample)
    task = Task(model, plain, work, groups, weights, statistics, criterion, rule, inputs)
    prices = uses(work, sample) if price == "macs" else {}
    found = levels_of(task, threshold, validation, tolerance, prices, budget)
    levels = found.levels
    keep = task.keep(levels)
    masked = masked_net(work, keep)
    done = shrink(masked, probed, groups, carry=not keep_posterior)
    notes += [*found.notes, *done.notes]
    small, heads, more = shrink_heads(done.net, probed)
    if keep_posterior:
        small, more = done.net, [f"dead heads of {name!r} stay, as zeros" for name in heads]
        heads = {}
    notes += more
    result = _like(small, plain)
    unused = task.decision(levels).inputs if structure != "weights" else {}
    variational = None
    if finetune is not None:
        notes.append(f"fine-tuned: loss of the last epoch {tuned(result, finetune, model)[-1]:.4g}")
    after = count(result, example)
    timed = measured(plain, result, example, calls) if calls else None
    if keep_posterior:
        result, variational = _posterior(bnn, keep, work, result, done, rank, floor, notes)
    units = [*_units(groups, done), *_heads(work, heads)]
    report = CompressionReport(
        criterion=criterion,
        structure=structure,
        agree=agree,
        before=count(plain, example),
        after=after,
        units=tuple(units),
        histograms=tuple(
            Histogram.of(*key, one.logs, levels[key]) for key, one in statistics.items()
        ),
        difference=distance(outputs(masked, probed), outputs(small, probed)),
        bits=tuple(bit_widths(weights, _left(work, done, keep))),
        latency=timed,
        unused_inputs=tuple((name, tuple(gone)) for name, gone in unused.items()),
        trials=tuple(found.trials),
        loss=found.loss,
        variational=variational,
        notes=(*notes, *(why for one in units for why in one.said())),
        masks=keep,
    )
    return result, report


def _check_double(net: nn.Module, sample: Any) -> None:
    """Refuse networks that do not run in double precision, or are random in evaluation mode."""
    try:
        one, two = (outputs(net, [sample]) for _ in range(2))
    except Exception as error:
        raise ValueError(
            f"compress: the network does not run in double precision ({told(error)}), in which it is "
            "compared with the smaller one; let it take the types of its inputs and parameters as they are"
        ) from error
    if distance(one, two) > TOLERANCE:
        raise ValueError(
            "compress: two runs of the network in evaluation mode on the same inputs differ, so that no "
            "network can be equal to it; look for noise that does not ask whether it is training, such as "
            "F.dropout(x) without training=self.training"
        )


def _on_cpu(example: Any) -> Any:
    def move(leaf: Any) -> Any:
        return leaf.cpu() if isinstance(leaf, Tensor) else leaf

    return torch.utils._pytree.tree_map(move, example)


def _like(small: nn.Module, plain: nn.Module) -> nn.Module:
    """The small network in the precision and on the device of the plain one, by name."""
    kinds = {**dict(plain.named_parameters()), **dict(plain.named_buffers())}
    usual = next(iter(plain.parameters()))
    small = copy.deepcopy(small)
    for name, tensor in [*small.named_parameters(), *small.named_buffers()]:
        like = kinds.get(name, usual)
        tensor.data = tensor.data.to(
            like.device, like.dtype if tensor.is_floating_point() else None
        )
        tensor.requires_grad_(like.requires_grad)
    for module in small.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
    return small.eval()


def _posterior(
    bnn: nn.Module,
    keep: Mapping[str, Tensor],
    work: nn.Module,
    small: nn.Module,
    done: Shrunk,
    rank: int | str | None,
    floor: float | None,
    notes: list[str],
) -> tuple[nn.Module, tuple[int, int]]:
    result, said = small_posterior(masked_posteriors(bnn, keep), work, small, done.plan)
    notes += said
    if rank is not None or floor is not None:
        result, said = slim(result, rank, floor)
        notes += said
    sizes = [sum(p.numel() for p in net.parameters()) for net in (bnn, result)]
    return result, (sizes[0], sizes[1])


def _left(work: nn.Module, done: Shrunk, keep: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For each weight, True at the entries that are neither masked nor taken out."""
    left = {}
    for name, index in indexed(work, done.plan).named_parameters():
        here = torch.zeros(work.get_parameter(name).shape, dtype=torch.bool)
        here.view(-1)[index.detach().long().flatten()] = True
        left[name] = here & keep[name] if name in keep else here
    return left


def _units(groups: list[Group], done: Shrunk) -> list[Units]:
    found = []
    for group in groups:
        makers = group.on(OUT)
        name = makers[0].layer if makers else group.name
        cut = done.plan.get(name)
        places = {unit for unit, spread in enumerate(makers[0].places) if spread}
        gone = 0
        if cut is not None:
            gone = sum(all(p in cut.out for p in makers[0].places[unit]) for unit in places)
        found.append(Units(name, group.size, group.size - gone, group.obstacle))
    return found


def _heads(net: nn.Module, gone: Mapping[str, list[int]]) -> list[Units]:
    found = []
    for name, module in net.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            left = module.num_heads - len(gone.get(name, ()))
            found.append(Units(f"{name} (heads)", module.num_heads, left))
    return found
