"""Shrinking: which dead units can go, what takes over their constants, and what stays."""

import torch
from torch import Tensor, nn

from kasuri.compression.attention import dead_heads, shrink_heads, without_heads
from kasuri.compression.coupling import find_groups
from kasuri.compression.probes import probes
from kasuri.compression.shrink import Shrunk, shrink
from tests.compression.networks import Grouped, Recurrent, Residual


def shrunk(net: nn.Module, x: Tensor, keep_posterior: bool = False) -> Shrunk:
    """Shrink, and compare with the network itself on inputs that it did not see."""
    net = net.double().eval()
    groups, _ = find_groups(net, x)
    done = shrink(net, probes(net, x), groups, keep_posterior)
    torch.manual_seed(99)
    for _ in range(2):
        fresh = torch.randn_like(x) if x.is_floating_point() else x.flip(0)
        torch.testing.assert_close(done.net(fresh), net(fresh), rtol=0, atol=1e-10)
    return done


def images(channels: int, size: int = 8) -> Tensor:
    return torch.randn(2, channels, size, size).double()


def residual(shift: float) -> Residual:
    """Four channels whose convolutions are 0; batch norm makes them a constant."""
    torch.manual_seed(0)
    net = Residual()
    for conv, norm in ((net.stem, net.norm1), (net.inner, net.norm2)):
        conv.weight.data[:4] = 0
        norm.bias.data.fill_(shift).add_(torch.randn(8) * 0.1)
        norm.running_var.uniform_(0.5, 2)
    return net


def test_biases_of_removed_units_are_folded_into_the_next_layer() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.Sigmoid(), nn.Linear(5, 2, bias=False))
    net[0].weight.data[[1, 3]] = 0
    done = shrunk(net, torch.randn(4, 3).double())
    assert done.net[0].out_features == 3
    expected = net[2].weight[:, [1, 3]] @ net[0].bias[[1, 3]].sigmoid()
    torch.testing.assert_close(done.net[2].bias, expected)
    assert net[2].bias is None, "the network given is not changed"


def test_units_that_read_constants_only_go_after_them() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)
    )
    net[0].weight.data[[1, 3]] = 0
    net[2].weight.data[[0, 4]] = 0
    net[2].weight.data[4, [1, 3]] = 1.0
    done = shrunk(net, torch.randn(4, 3).double())
    assert (done.net[0].out_features, done.net[2].out_features) == (3, 4)
    gone = {key: units.nonzero().flatten().tolist() for key, units in done.gone.items()}
    assert (gone["2", "out"], gone["2", "in"], gone["3", "follows"]) == ([0, 4], [1, 3], [0, 4])


def test_a_constant_zero_goes_past_zero_padding() -> None:
    done = shrunk(residual(-5.0), images(2))
    assert done.net.inner.out_channels == done.net.stem.out_channels == 4
    assert done.net.norm1.num_features == done.net.norm2.num_features == 4
    assert done.notes == []


def test_constants_before_zero_padding_share_one_carrier() -> None:
    done = shrunk(residual(2.0), images(2))
    assert done.net.stem.out_channels == 5
    assert "meets zero padding" in done.notes[0], "why the one stays"


def test_without_carriers_they_stay() -> None:
    done = shrunk(residual(2.0), images(2), keep_posterior=True)
    assert done.net.stem.out_channels == 8
    assert "meets zero padding" in done.notes[0]


def test_one_live_maker_keeps_a_unit_of_a_sum() -> None:
    net = residual(-5.0)
    nn.init.normal_(net.inner.weight)
    net.norm2.bias.data.fill_(1.0)
    assert shrunk(net, images(2)).net.stem.out_channels == 8


def test_groups_of_a_convolution_stay_equal() -> None:
    torch.manual_seed(0)
    net = Grouped()
    net.point.weight.data[:, [0, 1, 5]] = 0  # two of the first group, one of the second
    done = shrunk(net, images(3, 10))
    assert done.net.grouped.out_channels == 6
    assert done.net.grouped.groups == 2
    net.grouped.weight.data[4:8, 0] = 0  # of the second group's inputs only: none can go
    assert shrunk(net, images(3, 10)).net.grouped.in_channels == 12


def test_depthwise_channels_go_with_their_neighbours() -> None:
    torch.manual_seed(0)
    net = Grouped()
    for group in (0, 1):
        net.grouped.weight.data[4 * group : 4 * group + 4, [0, 2]] = 0
    small = shrunk(net, images(3, 10)).net
    assert small.first.out_channels == small.depthwise.groups == small.act.num_parameters == 8


def test_padded_depthwise_constants_stay() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 2, 1)
    )
    net[0].weight.data[:2] = 0
    done = shrunk(net, images(1))
    assert done.net[0].out_channels == 4, "at the border the constant meets zeros"
    assert "not constant" in done.notes[0]
    net[1].weight.data[:2] = 0
    assert shrunk(net, images(1)).net[0].out_channels == 2


def test_hidden_units_of_an_lstm() -> None:
    torch.manual_seed(0)
    net, x = Recurrent(), torch.randint(20, (3, 5))
    net.lstm.weight_hh_l0.data[:, [2, 7]] = 0
    net.hidden.weight.data[:, [2, 7]] = 0
    done = shrunk(net, x)
    assert done.net.lstm.hidden_size == done.net.hidden.in_features == 8
    assert done.net.lstm.weight_hh_l0.shape == (32, 8)


def test_hidden_units_of_other_recurrent_layers() -> None:
    class Net(nn.Module):
        def __init__(self, kind: type[nn.RNNBase]) -> None:
            super().__init__()
            self.layer, self.out = kind(3, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.layer(x)[0])

    for kind in (nn.GRU, nn.RNN):
        net = Net(kind)
        net.layer.weight_hh_l0.data[:, 1] = 0
        net.out.weight.data[:, 1] = 0
        assert shrunk(net, torch.randn(7, 2, 3).double()).net.layer.hidden_size == 5


def test_lstm_units_without_inputs_stay_because_they_swing_in() -> None:
    torch.manual_seed(0)
    net, x = Recurrent(), torch.randint(20, (3, 5))
    rows = [10 * gate + 4 for gate in range(4)]
    net.lstm.weight_ih_l0.data[rows] = 0
    net.lstm.weight_hh_l0.data[rows] = 0
    done = shrunk(net, x)
    assert done.net.lstm.hidden_size == 10
    assert "not constant" in done.notes[0]


def test_an_example_of_one_time_step_does_not_mislead() -> None:
    torch.manual_seed(0)
    net = Recurrent()
    for units in ([4], [4, 5]):  # the second is not read by the layer itself
        rows = [10 * gate + unit for gate in range(4) for unit in units]
        net.lstm.weight_ih_l0.data[rows] = 0
        net.lstm.weight_hh_l0.data[rows] = 0
    net.lstm.weight_hh_l0.data[:, 5] = 0
    small = shrunk(net, torch.randint(20, (3, 1))).net
    longer = torch.randint(20, (3, 6))
    torch.testing.assert_close(small(longer), net(longer), rtol=0, atol=1e-10)


def test_constant_inputs_of_an_lstm_go_into_its_bias() -> None:
    torch.manual_seed(0)
    net, x = Recurrent(), torch.randint(20, (3, 5))
    net.words.weight.data[:, [0, 3]] = 0
    done = shrunk(net, x)
    assert (done.net.words.embedding_dim, done.net.lstm.input_size) == (4, 4)


def test_units_of_norms_over_features_stay() -> None:
    net = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 2))
    net[0].weight.data[:3] = 0
    groups, _ = find_groups(net.double().eval(), torch.randn(2, 3).double())
    assert "LayerNorm" in {g.name: g.obstacle for g in groups}["0"]
    assert shrunk(net, torch.randn(2, 3).double()).net[0].out_features == 6


class Skips(nn.Module):
    """Adds its own input, of which marks know nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 2)
        self.other, self.last = nn.Linear(2, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.out(x + torch.relu(self.inner(x)))
        return self.last(torch.relu(self.other(x)))


def test_one_wrong_group_is_left_and_does_not_spoil_the_others() -> None:
    net = Skips()
    net.inner.weight.data[1] = 0
    net.out.weight.data[:, 1] = 0
    net.last.weight.data[:, 2] = 0
    done = shrunk(net, torch.randn(5, 4).double())
    assert (done.net.inner.out_features, done.net.other.out_features) == (4, 4)
    assert "outputs would change" in done.notes[-1]


def test_tied_weights_are_left() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    net[2].weight = net[0].weight
    groups, _ = find_groups(net.double().eval(), torch.randn(2, 4).double())
    assert "tied" in {g.name: g.obstacle for g in groups}["0"]


def attention(**options: object) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(12, 4, **options).double().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def test_heads_with_constant_values_or_no_readers_go() -> None:
    for options in ({}, {"batch_first": True}, {"bias": False}, {"kdim": 5, "vdim": 7}):
        layer = attention(**options)
        values = layer.v_proj_weight if "kdim" in options else layer.in_proj_weight[24:]
        values.data[:3] = 0
        layer.out_proj.weight.data[:, 9:] = 0
        assert dead_heads(layer) == [0, 3]
        small = without_heads(layer, [0, 3])
        q = torch.randn(4, 4, 12).double()
        k = torch.randn(4, 4, layer.kdim).double()
        v = torch.randn(4, 4, layer.vdim).double()
        mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
        for extra in ({}, {"attn_mask": mask}, {"need_weights": False}):
            torch.testing.assert_close(
                small(q, k, v, **extra)[0], layer(q, k, v, **extra)[0], rtol=0, atol=1e-10
            )


def test_attention_to_a_learned_key_keeps_its_heads() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention(add_bias_kv=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x)[0]

    net = Net()
    net.attention.out_proj.weight.data[:, :6] = 0
    small, gone, notes = shrink_heads(net, [torch.randn(3, 2, 12).double()])
    assert small is net
    assert not gone
    assert "learned or zero key" in notes[0]
