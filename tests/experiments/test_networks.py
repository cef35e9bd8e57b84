"""Architectures: the numbers of weights that papers print."""

import pytest
import torch
from torch import nn

from experiments.data.dataset import Dataset, Split
from experiments.networks import ELUMLP, VGG, LeNet, LeNet5
from kasuri import MeanField, bayesianize


def pictures(*shape):
    part = Split(torch.zeros(4, *shape), torch.zeros(4, dtype=torch.long))
    return Dataset("zeros", part, part, part, classes=tuple(map(str, range(10))))


@pytest.mark.parametrize(
    ("net", "shape", "weights", "rows", "columns"),
    [
        (VGG(), (3, 32, 32), 62_270, None, None),
        (VGG(tuple((w,) * 3 for w in (20, 40, 80, 40))), (3, 32, 32), 246_940, 4_527, 540),
        (VGG(((10,), (20,), (40,), (80,))), (1, 28, 28), 38_690, None, None),
    ],
)
def test_convolutional_networks_of_the_matrix_normal_paper(net, shape, weights, rows, columns):
    made = net(pictures(*shape))
    assert sum(p.numel() for p in made.parameters()) == weights
    assert made(torch.zeros(2, *shape)).shape == (2, 10)
    kernels = [m.weight for m in made if isinstance(m, nn.Conv2d)]
    if rows is not None:  # the paper's rows are inputs of a convolution, its columns outputs
        assert sum(k[0].numel() for k in kernels) == rows
        assert sum(k.shape[0] for k in kernels) == columns


def test_fully_connected_networks_with_elu():
    made = ELUMLP((300, 300, 300))(pictures(784))
    assert sum(m.weight.numel() for m in made if isinstance(m, nn.Linear)) == 418_200
    assert sum(isinstance(m, nn.ELU) for m in made) == 3


@pytest.mark.parametrize("net", [VGG(((4,), (6,))), LeNet((4, 6), 3, 8), LeNet5((4, 6), 8)])
def test_pictures_are_laid_out_pixel_by_pixel(net):
    """Max-pooling of channel after channel takes most of the time of these networks on a CPU."""
    made = bayesianize(net(pictures(1, 28, 28)), MeanField(), estimator="shared")
    layouts = []
    pools = [module for module in made.modules() if isinstance(module, nn.MaxPool2d)]
    for pool in pools:
        pool.register_forward_hook(lambda _, ins, out: layouts.append(out.stride(1) == 1))
    made(torch.randn(3, 1, 28, 28))
    assert layouts == [True] * len(pools)
