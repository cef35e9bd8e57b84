"""Converted networks under fully_shard, which changes the classes of layers in its own way."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import kasuri

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
pytestmark = pytest.mark.skipif(VERSION < (2, 8), reason="torch 2.6 shards on graphics cards only")


@pytest.fixture
def _group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("per_layer", [True, False], ids=["each layer", "root"])
@pytest.mark.parametrize("family", [kasuri.MeanField(), kasuri.KTied(2)], ids=repr)
def test_sharded_networks_have_the_same_mean_and_all_gradients(
    family: kasuri.Family, per_layer: bool
) -> None:
    bnn = kasuri.bayesianize(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), family)
    x = torch.randn(5, 4)
    before = bnn.eval()(x).detach()
    mesh = init_device_mesh("cpu", (1,))
    for layer in (bnn[0], bnn[2]) if per_layer else ():
        fully_shard(layer, mesh=mesh)
    fully_shard(bnn, mesh=mesh)
    assert isinstance(bnn[0], nn.Linear)
    torch.testing.assert_close(bnn(x).detach(), before, rtol=0.0, atol=1e-6)
    drawn = bnn.train()(x)
    assert not torch.equal(drawn, bnn(x))
    drawn.square().sum().backward()
    assert all(p.grad is not None for p in bnn.parameters())


@pytest.mark.usefixtures("_group")
def test_networks_sharded_at_the_root_train_on_the_elbo() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    bnn = kasuri.bayesianize(net, kasuri.KTied(2))
    x, y = torch.randn(5, 4), torch.randint(2, (5,))
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=5)
    with kasuri.frozen(bnn, seed=1):
        before = elbo(x, y).loss.detach()
        fully_shard(bnn, mesh=init_device_mesh("cpu", (1,)))
        after = elbo(x, y).loss
    torch.testing.assert_close(after.detach(), before)
    after.backward()
    assert all(p.grad is not None for p in bnn.parameters())
