"""Architectures: the numbers of weights that papers print, and how they start."""

import pytest
import torch
from torch import nn

import kasuri
from experiments.data import Dataset, Split
from experiments.networks import (
    ELUMLP,
    LSTM,
    VGG,
    CifarResNet,
    LeNet,
    LeNet5,
    ResNet,
    TwoLayer,
    auto_encoder,
)


def zeros(*shape, classes=10, dtype=torch.float32):
    part = Split(torch.zeros(4, *shape, dtype=dtype), torch.zeros(4, dtype=torch.long))
    return Dataset("zeros", part, part, part, classes=tuple(map(str, range(classes))))


WIDE = VGG(tuple((width,) * 3 for width in (20, 40, 80, 40)))


@pytest.mark.parametrize(
    ("net", "shape", "weights"),
    [
        (VGG(), (3, 32, 32), 62_270),
        (LeNet(kernel=3), (3, 32, 32), 9 * (3 * 32 + 32 * 64) + 512 * (64 * 8 * 8 + 10)),
        (WIDE, (3, 32, 32), 246_940),
        (VGG(((10,), (20,), (40,), (80,))), (1, 28, 28), 38_690),
        (ELUMLP((300, 300, 300)), (784,), 418_200),
        (ResNet(), (3, 32, 32), 4_901_568),  # of the published example
        (TwoLayer(100), (784,), 79_400),
        (CifarResNet(), (3, 32, 32), 270_896),  # and ten biases
        (LeNet5(), (1, 28, 28), 430_500),
    ],
)
def test_numbers_of_weights_are_those_of_the_papers(net, shape, weights):
    made = net(zeros(*shape))
    layers = [m for m in made.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert sum(layer.weight.numel() for layer in layers) == weights
    assert made(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("net", [VGG(((4,), (6,))), LeNet((4, 6), 3, 8), LeNet5((4, 6), 8)])
def test_pictures_are_laid_out_pixel_by_pixel(net):
    """Max-pooling of channel after channel takes most of the time of these networks on a CPU."""
    made = kasuri.bayesianize(net(zeros(1, 28, 28)), kasuri.MeanField(), estimator="shared")
    layouts = []
    pools = [module for module in made.modules() if isinstance(module, nn.MaxPool2d)]
    for pool in pools:
        pool.register_forward_hook(lambda _, ins, out: layouts.append(out.stride(1) == 1))
    made(torch.randn(3, 1, 28, 28))
    assert layouts == [True] * len(pools)


def test_lstm_reads_the_last_word_last_and_starts_with_open_forget_gates():
    net = LSTM(vocabulary=50, width=4)(zeros(80, classes=2, dtype=torch.long))
    nothing, first, last = torch.zeros(3, 1, 80, dtype=torch.long)
    first[0, 0], last[0, -1] = 7, 7
    assert net(nothing).shape == (1,)
    assert (net(last) - net(nothing)).abs() > 100 * (net(first) - net(nothing)).abs()
    assert net.lstm.bias_ih_l0[4:8].eq(1).all()
    assert not net.lstm.bias_hh_l0.requires_grad


def test_outputs_of_the_slides_networks_are_averages():
    net, x = TwoLayer(100)(zeros(784)), torch.rand(3, 784)
    torch.testing.assert_close(net(x), net[2](net[1](net[0](x))) / 100)
    small = CifarResNet(1, (8, 16, 32))(zeros(3, 32, 32))
    sides = [m.kernel_size for m in small.modules() if isinstance(m, nn.Conv2d)]
    assert sides.count((3, 3)) + 1 == 8


def test_auto_encoders_start_alike_and_at_the_variances_of_the_prior():
    started = []
    vae = kasuri.vae
    for latent in (vae.FullLatent(9), vae.DiagonalLatent(9), vae.KTiedLatent(3, 3, 1)):
        torch.manual_seed(0)
        encoder, decoder = auto_encoder(36, (12, 10, 8), latent.size, 9)
        widths = [layer.out_features for layer in encoder if isinstance(layer, nn.Linear)]
        assert widths == [12, 10, 8, latent.size]
        assert sum(isinstance(layer, nn.ELU) for layer in encoder) == 3
        x = torch.linspace(0, 1, 180).view(5, 36)
        q = latent(encoder(x))
        assert (q.variance == 1).all()
        assert q.mean.std() > 0.1
        torch.testing.assert_close(q.kl(), 0.5 * q.mean.square().sum(1))
        started.append((q.mean, decoder(x[:, :9])))
    for mean, output in started[1:]:
        torch.testing.assert_close(mean, started[0][0])
        torch.testing.assert_close(output, started[0][1])
