"""Any number of threads may use one network: results are those of one thread, the network is as before."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kasuri
from kasuri.network import calls

THREADS = 8
X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    return kasuri.bayesianize(net, kasuri.KTied(rank=1, scale=0.3), estimator="shared")


def predicted(bnn: nn.Module, seed: int) -> torch.Tensor:
    return kasuri.predict(bnn, X, samples=2, seed=seed).mean


def locally_predicted(bnn: nn.Module, seed: int) -> torch.Tensor:
    return kasuri.predict(bnn, X, samples=2, seed=seed, estimator="local").mean


def frozen(bnn: nn.Module, seed: int) -> torch.Tensor:
    with kasuri.frozen(bnn, seed), torch.no_grad():
        return F.linear(X, bnn[0].weight, bnn[0].bias)


def mean(bnn: nn.Module, seed: int) -> torch.Tensor:
    with kasuri.using(bnn, "mean"), torch.no_grad():
        return bnn[0](X)


def coherent(bnn: nn.Module, seed: int) -> torch.Tensor:
    """Under `shared` a call in training mode is one function: equal rows have equal outputs."""
    out = bnn[0](X[:1].expand(5, 4))
    return out - out[:1]


JOBS = [predicted, locally_predicted, frozen, mean, coherent]


@pytest.fixture
def _often() -> Iterator[None]:
    """Let threads take turns often: inside calls, and without long waits for each other."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("shared", [True, False], ids=["one network", "eight networks"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_threads_do_not_disturb_each_other(shared: bool, training: bool, count: int) -> None:
    nets = [network(0 if shared else index) for index in range(1 if shared else THREADS)]
    for net in nets:
        net.train(training)
    nets = nets * (THREADS if shared else 1)
    states = [{k: v.clone() for k, v in net.state_dict().items()} for net in nets]
    jobs = [(job, seed) for seed in range(5) for job in JOBS]
    expected = [[job(net, seed) for job, seed in jobs] for net in nets]

    def work(index: int) -> int:
        wrong = 0
        for number in range(count):
            place = (number + index) % len(jobs)
            job, seed = jobs[place]
            wrong += not torch.equal(job(nets[index], seed), expected[index][place])
        assert calls.state.call is None
        assert not calls.state.overrides
        return wrong

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(work, range(THREADS))) == 0
    for net, state in zip(nets, states, strict=True):
        assert all(module.training == training for module in net.modules())
        assert all(torch.equal(state[key], value) for key, value in net.state_dict().items())
