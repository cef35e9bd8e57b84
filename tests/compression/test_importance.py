"""Criteria, peeling and thresholds against sums and searches written out."""

import math

import torch
from torch import nn

import kasuri
from kasuri.compression.importance import (
    HEAD_OUTPUTS,
    HEAD_VALUES,
    matrices_of,
    statistics_of,
)
from kasuri.compression.search import largest_gap
from kasuri.compression.units import IN, OUT, OWN
from kasuri.network.random import conversion_of


def randomised(net: nn.Module, seed: int = 0, **options: object) -> nn.Module:
    torch.manual_seed(seed)
    bnn = kasuri.bayesianize(net.double(), kasuri.MeanField(), **options)
    for _, q in kasuri.named_posteriors(bnn):
        q.loc.data.normal_()
        q.log_scale.data.normal_()
    return bnn


def of(
    bnn: nn.Module, criterion: str = "snr", model: nn.Module | None = None, **sides: bool
) -> dict:
    asked = frozenset({"rows", "columns"}) - {side for side, wanted in sides.items() if not wanted}
    return statistics_of(kasuri.collapse(bnn), matrices_of(model or bnn), criterion, asked)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-9, atol=1e-12)


def test_signal_to_noise_of_channels_of_a_convolution_in_groups() -> None:
    bnn = randomised(nn.Conv2d(4, 6, 3, groups=2))
    q = bnn.posteriors.weight
    signal, noise = q.mean.square().reshape(2, 3, 2, 9), q.variance.reshape(2, 3, 2, 9)
    close(of(bnn, columns=False)["", OUT].exp(), (signal.sum((2, 3)) / noise.sum((2, 3))).flatten())
    close(of(bnn, rows=False)["", IN].exp(), (signal.sum((1, 3)) / noise.sum((1, 3))).flatten())


def test_signal_to_noise_of_a_transposed_convolution() -> None:
    bnn = randomised(nn.ConvTranspose1d(3, 4, 2))
    layer = kasuri.collapse(bnn)
    scale = (
        conversion_of(bnn).views["weight"].tensor(bnn.posteriors.weight.variance)
    )  # (in, out, positions)
    ratio = layer.weight.square().sum((0, 2)) / scale.sum((0, 2))
    close(of(bnn, columns=False)["", OUT].exp(), ratio)


def test_hidden_units_pool_their_gates() -> None:
    for blocks in (False, True):
        bnn = randomised(nn.LSTM(3, 5), blocks=blocks)
        parts = [bnn.posteriors.get_submodule(name) for name in ("weight_ih_l0", "weight_hh_l0")]
        signal = [q.mean.square().reshape(4, 5, -1) for q in parts]
        noise = [q.variance.reshape(4, 5, -1) for q in parts]
        rows = [sum(t.sum((0, 2)) for t in pair) for pair in (signal, noise)]
        close(of(bnn, columns=False)["", OUT].exp(), rows[0] / rows[1])
        single = of(bnn, rows=False)
        for side, index in ((IN, 0), (OWN, 1)):
            close(single["", side].exp(), signal[index].sum((0, 1)) / noise[index].sum((0, 1)))


def test_heads_pool_their_rows_and_columns() -> None:
    bnn = randomised(nn.MultiheadAttention(6, 3))
    values, outputs = bnn.posteriors.in_proj_weight, bnn.out_proj.posteriors.weight
    by_head = [t[12:].reshape(3, -1).sum(1) for t in (values.mean.square(), values.variance)]
    close(of(bnn)["", HEAD_VALUES].exp(), by_head[0] / by_head[1])
    by_head = [t.T.reshape(3, -1).sum(1) for t in (outputs.mean.square(), outputs.variance)]
    close(of(bnn)["", HEAD_OUTPUTS].exp(), by_head[0] / by_head[1])


def test_log_modes_are_those_of_the_radii() -> None:
    torch.manual_seed(0)
    net = nn.Conv2d(3, 5, 3)
    bnn = kasuri.bayesianize(net, kasuri.Radial(grouping="double"))
    found, q = of(bnn, "log_mode"), bnn.posteriors.weight
    modes = q.log_modes("rows").detach().double()
    torch.testing.assert_close(found["", OUT], modes - modes.max())
    assert found["", IN].shape == (3,)


def test_lengths_of_means_stand_in_for_radii_beside_radial_layers() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Conv2d(2, 5, 3)).double()
    bnn = kasuri.bayesianize(net, kasuri.Radial(), where="0")
    bnn = kasuri.bayesianize(bnn, kasuri.MeanField(), where="1")
    found, mean = of(bnn, "log_mode"), kasuri.collapse(bnn)[1].weight
    for side, sums in ((OUT, (1, 2, 3)), (IN, (0, 2, 3))):
        lengths = mean.square().sum(sums).sqrt()
        close(found["1", side].exp(), lengths / lengths.max())


def worst_first(signal: list, noise: list, threshold: float) -> tuple[set, set]:
    """Rows and columns left when the worst of them is taken away until none is below a threshold."""
    rows, columns = set(range(len(signal))), set(range(len(signal[0])))
    while rows and columns:
        ratios = {
            (0, i): sum(signal[i][j] for j in columns) / sum(noise[i][j] for j in columns)
            for i in rows
        } | {
            (1, j): sum(signal[i][j] for i in rows) / sum(noise[i][j] for i in rows)
            for j in columns
        }
        side, place = min(ratios, key=lambda key: ratios[key])
        if ratios[side, place] >= threshold:
            break
        (columns if side else rows).remove(place)
    return rows, columns


def test_peeling_is_taking_away_the_worst_until_none_is_below() -> None:
    bnn = randomised(nn.Linear(12, 9), seed=1)
    q = bnn.posteriors.weight
    q.log_scale.data[:, ::2] += 2
    q.log_scale.data[::3] += 1
    found = of(bnn)
    sizes = set()
    for threshold in (0.05, 0.3, 0.6, 1.0, 2.0):
        rows, columns = worst_first(q.mean.square().tolist(), q.variance.tolist(), threshold)
        sizes.add(len(rows))
        for side, expected in ((OUT, rows), (IN, columns)):
            left = (found["", side] >= math.log(threshold)).nonzero().flatten().tolist()
            assert set(left) == expected, threshold
    assert len(sizes) > 2


def test_the_largest_gap() -> None:
    logs = torch.tensor([0.5, -7.0, 1.0, -6.5, -torch.inf, 0.7])
    assert largest_gap(logs) == -3.0
    assert largest_gap(logs / 8) == -math.inf, "no gap is a factor e wide"
    high = torch.tensor([0.1, 0.2, 5.0])
    assert largest_gap(high) == -math.inf, "all have more signal than noise"
