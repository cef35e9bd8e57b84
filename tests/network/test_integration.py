"""Converted networks inside the rest of torch: DDP, autocast, checkpoints, compile, func, export."""

import copy
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import kasuri

FAMILIES = {"mean_field": kasuri.MeanField(scale=0.1), "k_tied": kasuri.KTied(rank=2, scale=0.1)}
each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
each_way = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "saved_hooks"])
Grads = dict[str, Tensor]
Make = Callable[[], nn.Module]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 8, padding_idx=0), nn.Linear(8, 3)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.encode = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        h = h + self.attend(h, h, h, need_weights=False)[0]
        return self.head(self.encode(h).mean(1))


class Deep(nn.Module):
    """Two blocks, each in a checkpoint of its own if `reentrant` is not None."""

    def __init__(self, repeat: bool = False) -> None:
        super().__init__()
        first = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
        self.blocks = nn.ModuleList([first, nn.Sequential(nn.Linear(4, 4), nn.Tanh())])
        self.head, self.repeat = nn.Linear(4, 3), repeat
        self.reentrant: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        for block in [*self.blocks, self.blocks[0]] if self.repeat else self.blocks:
            way = partial(checkpoint, block, use_reentrant=self.reentrant)
            x = block(x) if self.reentrant is None else way(x)
        return self.head(x)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def conv() -> nn.Module:
    layers = (nn.Conv2d(4, 4, 3, groups=2), nn.Tanh(), nn.Conv2d(4, 2, 2), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(2 * 3 * 3, 3))


def one_conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 3, 6), nn.Flatten())


def data(net: nn.Module, n: int = 8) -> tuple[Tensor, Tensor]:
    if isinstance(net, Attention):
        return torch.randint(10, (n, 5)), torch.randint(3, (n,))
    sides = {nn.LSTM: (5, 4), nn.Conv2d: (4, 6, 6)}.get(type(next(net.children())), (4,))
    return torch.randn(n, *sides), torch.randint(3, (n,))


def objective(bnn: nn.Module) -> kasuri.ELBO:
    return kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.HeNormal(), num_data=50)


def gradients(net: nn.Module, loss: Callable[[], Tensor], seed: int = 7) -> Grads:
    net.zero_grad()
    torch.manual_seed(seed)
    loss().backward()
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def assert_same(a: Grads, b: Grads, **tolerance: float) -> None:
    assert a.keys() == b.keys() != set()
    for name in a:
        torch.testing.assert_close(a[name], b[name], msg=lambda m, n=name: f"{n}: {m}", **tolerance)


def ddp_cases() -> Iterator[tuple[str, bool, nn.Module, tuple[Tensor, Tensor]]]:
    """(name, whether the ELBO is in DDP or only the network, network, data), equal everywhere."""
    for name, family in FAMILIES.items():
        for outside in (True, False):
            torch.manual_seed(1)
            bnn = kasuri.bayesianize(mlp(), family, estimator="shared")
            yield f"{name} {outside}", outside, bnn, data(bnn)


def ddp_worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for name, outside, bnn, (x, y) in ddp_cases():
        ddp = DistributedDataParallel(objective(bnn) if outside else bnn)
        elbo = ddp if outside else objective(ddp)
        x, y = x.chunk(2)[rank], y.chunk(2)[rank]
        torch.manual_seed(100 + rank)  # must not matter inside frozen
        losses: list[float] = []
        with kasuri.frozen(bnn, seed=5):
            for _ in range(2):  # the reducer must be ready again after the first step
                bnn.zero_grad()
                loss = elbo(x, y).loss
                loss.backward()
                losses.append(loss.item())
        grads = {key: p.grad.clone() for key, p in bnn.named_parameters()}
        found[name] = {"losses": losses, "grads": grads, "free": bnn(torch.ones(4)).detach()}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ddp")
    context = mp.spawn(ddp_worker, (str(folder),), nprocs=2, join=False)
    try:
        assert any(context.join(timeout=1) for _ in range(60)), "the processes hang"
    finally:
        for process in context.processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_ddp_equals_one_process_on_the_joined_batch(ranks: list[dict[str, Any]]) -> None:
    for name, _, bnn, (x, y) in ddp_cases():
        with kasuri.frozen(bnn, seed=5):
            loss = objective(bnn)(x, y).loss
            grads = gradients(bnn, lambda loss=loss: loss)
        for one in ranks:
            assert_same(one[name]["grads"], grads, rtol=1e-5, atol=1e-7)
        assert_same(ranks[0][name]["grads"], ranks[1][name]["grads"], rtol=0.0, atol=0.0)
        for step in range(2):
            average = sum(one[name]["losses"][step] for one in ranks) / 2
            assert average == pytest.approx(loss.item(), rel=1e-6)


def test_noise_differs_between_ranks_with_different_seeds(ranks: list[dict[str, Any]]) -> None:
    for name in ranks[0]:
        assert not torch.equal(ranks[0][name]["free"], ranks[1][name]["free"]), name


# mixed precision


@each_family
@pytest.mark.parametrize(
    ("make", "estimator"),
    [
        *product((mlp, conv), ("mean", "shared", "local", "flipout")),
        *product((Recurrent,), ("mean", "shared")),
    ],
)
def test_autocast(make: Make, estimator: str, family: kasuri.Family) -> None:
    x, y = data(net := make())
    with torch.autocast("cpu", torch.bfloat16):
        try:
            net(x)
        except RuntimeError as error:  # recurrent layers on processors without AVX-512
            pytest.skip(f"torch cannot run the plain network in bfloat16 here: {error}"[:120])
    quiet = type(family)(scale=1e-4)  # streams of noise differ between precisions
    elbo = objective(bnn := kasuri.bayesianize(net, quiet, estimator=estimator))
    with torch.autocast("cpu", torch.bfloat16):
        terms, kl, output = elbo(x, y), elbo.kl(), bnn(x)
    assert output.dtype == torch.bfloat16  # or nothing was tested
    grads, plain = gradients(bnn, lambda: terms.loss), elbo(x, y)
    assert {t.dtype for t in (terms.kl, *bnn.parameters(), *grads.values())} == {torch.float32}
    assert torch.equal(terms.kl, plain.kl)
    assert_same(gradients(bnn, lambda: kl), gradients(bnn, elbo.kl), rtol=0.0, atol=0.0)
    assert abs(terms.nll - plain.nll) < 0.03
    exact = gradients(bnn, lambda: plain.loss)
    for name in grads:
        assert (grads[name] - exact[name]).norm() < 0.05 * exact[name].norm() + 1e-3, name


@each_family
@each_way
@pytest.mark.parametrize("estimator", ["shared", "local", "flipout"])
def test_checkpoints(family: kasuri.Family, estimator: str, reentrant: bool) -> None:
    x, y = torch.randn(6, 4, requires_grad=True), torch.randint(3, (6,))
    elbo = objective(bnn := kasuri.bayesianize(Deep(), family, estimator=estimator))
    plain = gradients(bnn, lambda: elbo(x, y).loss)
    other = gradients(bnn, lambda: elbo(x, y).loss, seed=8)
    assert not torch.equal(plain["head.posteriors.weight.loc"], other["head.posteriors.weight.loc"])
    bnn.reentrant = reentrant
    assert_same(gradients(bnn, lambda: elbo(x, y).loss), plain, rtol=1e-5, atol=1e-8)


@each_family
@each_way
def test_layer_in_several_checkpoints(family: kasuri.Family, reentrant: bool) -> None:
    bnn = kasuri.bayesianize(Deep(repeat=True), family, estimator="shared")
    x = torch.randn(6, 4, requires_grad=True)
    around = partial(checkpoint, bnn, x, use_reentrant=reentrant)  # a call, hence a scope, again
    whole = gradients(bnn, lambda: bnn(x).square().sum())
    assert_same(gradients(bnn, lambda: around().square().sum()), whole, rtol=1e-5, atol=1e-8)
    with kasuri.frozen(bnn, seed=4):
        plain = gradients(bnn, lambda: bnn(x).square().sum())
    bnn.reentrant = reentrant
    with pytest.raises(RuntimeError, match=r"used several times .* kasuri\.frozen\(bnn, seed\)"):
        bnn(x).sum().backward()
    with kasuri.frozen(bnn, seed=4):
        assert_same(gradients(bnn, lambda: bnn(x).square().sum()), plain, rtol=1e-5, atol=1e-8)


@each_way
def test_checkpointed_training_inside_frozen_follows_the_parameters(reentrant: bool) -> None:
    """Reentrant checkpoints run forward without gradients: what was kept there must not go stale."""
    start = kasuri.bayesianize(Deep(), FAMILIES["k_tied"])
    x, y = torch.randn(6, 4, requires_grad=True), torch.randint(3, (6,))
    losses: dict[bool | None, list[float]] = {None: [], reentrant: []}
    for way, found in losses.items():
        bnn = copy.deepcopy(start)
        bnn.reentrant = way
        optimizer = torch.optim.SGD(bnn.parameters(), lr=0.5)
        with kasuri.frozen(bnn, seed=4):
            for _ in range(3):
                optimizer.zero_grad()
                loss = objective(bnn)(x, y).loss
                loss.backward()
                optimizer.step()
                found.append(loss.item())
    assert losses[reentrant] == pytest.approx(losses[None], rel=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize(
    ("make", "backend", "estimators"),
    [
        (mlp, "inductor", []),
        pytest.param(one_conv, "inductor", ["shared"], marks=pytest.mark.thorough),
        (one_conv, "aot_eager", ["shared", "local", "flipout"]),
        pytest.param(Attention, "aot_eager", ["shared"], marks=pytest.mark.thorough),
    ],
)
def test_compile(make: Make, backend: str, estimators: list[str]) -> None:
    x, y = data(net := make())
    elbo = objective(bnn := kasuri.bayesianize(net, FAMILIES["k_tied"]))
    torch.compiler.reset()
    compiled = torch.compile(elbo, fullgraph=True, backend=backend)
    with kasuri.using(bnn, "mean"):
        eager, fused = elbo(x, y), compiled(x, y)
        torch.testing.assert_close(tuple(fused), tuple(eager), rtol=1e-5, atol=1e-5)
        grads = gradients(bnn, lambda: eager.loss)
        assert_same(gradients(bnn, lambda: fused.loss), grads, rtol=1e-4, atol=1e-5)
    for estimator in estimators:
        with kasuri.using(bnn, estimator):
            first, second = compiled(x, y), compiled(x, y)
            assert first.nll != second.nll
            assert torch.allclose(first.kl, elbo.kl())
            grads = gradients(bnn, lambda first=first: first.loss)
            assert grads.keys() == {name for name, _ in bnn.named_parameters()}
            assert all(g.isfinite().all() and g.any() for g in grads.values())


@each_family
@pytest.mark.parametrize("where", ["bnn", "elbo"])
def test_ema_and_copies_inside_training(family: kasuri.Family, where: str) -> None:
    bnn = kasuri.bayesianize(mlp(), family)
    elbo, (x, y) = objective(bnn), data(bnn)
    tracked = bnn if where == "bnn" else elbo
    ema = AveragedModel(tracked, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    optimizer = torch.optim.SGD(elbo.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        elbo(x, y).loss.backward()
        optimizer.step()
        now = [p.detach().clone() for p in tracked.parameters()]
        old = [p.detach().clone() for p in ema.module.parameters()] if step else now
        ema.update_parameters(tracked)
        for p, a, b in zip(ema.module.parameters(), old, now, strict=True):
            torch.testing.assert_close(p.detach(), (a + b) / 2)
        twin = copy.deepcopy(elbo)
        with kasuri.frozen(bnn, seed=step), kasuri.frozen(twin.bnn, seed=step):
            grads = [gradients(net, lambda net=net: net(x, y).loss) for net in (elbo, twin)]
        assert_same(*grads, rtol=0.0, atol=0.0)
    averaged = ema.module if where == "bnn" else ema.module.bnn
    assert not any(a is b for a in averaged.modules() for b in bnn.modules())
    assert not torch.equal(averaged.train()(x), averaged(x))
    assert kasuri.predict(averaged, x, samples=3).mean.shape == (8, 3)


@pytest.mark.parametrize("context", ["using", "frozen"])
def test_copy_made_inside_a_context_is_an_ordinary_network(context: str) -> None:
    """A snapshot taken in the block trains and draws like any other once the block is over."""
    bnn, x = kasuri.bayesianize(mlp(), FAMILIES["k_tied"]), torch.randn(5, 4)
    with kasuri.using(bnn, "mean") if context == "using" else kasuri.frozen(bnn, seed=1):
        twin = copy.deepcopy(bnn)
    assert not torch.equal(twin(x), twin(x))
    assert torch.equal(twin.eval()(x), bnn.eval()(x))
