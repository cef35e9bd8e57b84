"""Converted networks inside the rest of torch: DDP, autocast, checkpoints, compile, func, export."""

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import weft

FAMILIES = {"mean_field": weft.MeanField(scale=0.1), "k_tied": weft.KTied(rank=2, scale=0.1)}
each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
each_way = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "saved_hooks"])
Grads = dict[str, Tensor]


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
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def conv() -> nn.Module:
    layers = (nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 2, 2), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(2 * 3 * 3, 3))


def data(net: nn.Module, n: int = 8) -> tuple[Tensor, Tensor]:
    if isinstance(net, Attention):
        return torch.randint(10, (n, 5)), torch.randint(3, (n,))
    first = next(net.modules() if isinstance(net, Recurrent) else net.children(), net)
    sides = {Recurrent: (5, 4), nn.Conv2d: (4, 6, 6)}.get(type(first), (4,))
    return torch.randn(n, *sides), torch.randint(3, (n,))


def objective(bnn: nn.Module, **options: Any) -> weft.ELBO:
    return weft.ELBO(bnn, weft.Categorical(), weft.HeNormal(), num_data=50, **options)


def gradients(net: nn.Module, loss: Callable[[], Tensor], seed: int | None = 7) -> Grads:
    net.zero_grad()
    if seed is not None:
        torch.manual_seed(seed)
    loss().backward()
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def assert_same(a: Grads, b: Grads, **tolerance: float) -> None:
    assert a
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], msg=lambda m, n=name: f"{n}: {m}", **tolerance)


# distributed training


def ddp_cases() -> Iterator[tuple[str, weft.ELBO, Callable[[Tensor, Tensor], weft.ELBO], Any]]:
    """(name, ELBO of one process, the distributed call, network), equal in every process."""
    for name, family in FAMILIES.items():
        for wrapped in ("elbo", "bnn"):
            torch.manual_seed(1)
            bnn = weft.bayesianize(mlp(), family, estimator="shared")
            yield f"{name} {wrapped}", objective(bnn), wrapped, bnn


def ddp_worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for name, elbo, wrapped, bnn in ddp_cases():
        if wrapped == "elbo":
            call = DistributedDataParallel(elbo)
        else:
            call = objective(DistributedDataParallel(bnn))
        torch.manual_seed(1)
        x, y = (part.chunk(2)[rank] for part in data(mlp()))
        torch.manual_seed(100 + rank)  # must not matter inside frozen
        losses: list[float] = []
        with weft.frozen(bnn, seed=5):
            for _ in range(2):  # the reducer must be ready again after the first step
                bnn.zero_grad()
                loss = call(x, y).loss
                loss.backward()
                losses.append(loss.item())
        grads = {key: p.grad.clone() for key, p in bnn.named_parameters()}
        with torch.no_grad():
            free = call(x.new_ones(4, 4), y).nll.item(), bnn(torch.ones(4))
        found[name] = {"losses": losses, "grads": grads, "free": free[1]}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ddp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        context = mp.spawn(ddp_worker, (str(folder),), nprocs=2, join=False)
        try:
            for _ in range(60):
                if context.join(timeout=1):
                    break
        finally:
            for process in context.processes:
                process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_ddp_equals_one_process_on_the_joined_batch(ranks: list[dict[str, Any]]) -> None:
    for name, elbo, _, bnn in ddp_cases():
        torch.manual_seed(1)
        x, y = data(mlp())
        with weft.frozen(bnn, seed=5):
            loss = elbo(x, y).loss
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

PRECISION_CASES = [
    (net, estimator)
    for net in (mlp, conv, Recurrent)
    for estimator in ("mean", "shared", "local", "flipout")
    if net is not Recurrent or estimator in ("mean", "shared")
]


@each_family
@pytest.mark.parametrize(("make", "estimator"), PRECISION_CASES)
def test_autocast(make: Callable[[], nn.Module], estimator: str, family: weft.Family) -> None:
    net = make()
    x, y = data(net)
    quiet = type(family)(scale=1e-3)  # streams of noise differ between precisions
    bnn = weft.bayesianize(net, quiet, estimator=estimator)
    elbo = objective(bnn)
    with torch.autocast("cpu", torch.bfloat16):
        terms, output = elbo(x, y), bnn(x)
    assert output.dtype == torch.bfloat16  # or nothing was tested
    grads = gradients(bnn, lambda: terms.loss)
    assert {p.dtype for p in bnn.parameters()} == {torch.float32}
    assert {g.dtype for g in grads.values()} == {torch.float32}
    assert terms.kl.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        inside = gradients(bnn, elbo.kl)
    assert torch.equal(terms.kl, elbo.kl())
    assert_same(inside, gradients(bnn, elbo.kl), rtol=0.0, atol=0.0)
    plain = elbo(x, y)
    assert abs(terms.nll - plain.nll) < 0.03
    means = {name for name in grads if name.endswith("loc")}
    exact = gradients(bnn, lambda: plain.loss)
    for name in means:
        assert (grads[name] - exact[name]).norm() < 0.1 * exact[name].norm() + 1e-3, name


@each_family
def test_frozen_weights_are_float32_inside_autocast(family: weft.Family) -> None:
    bnn = weft.bayesianize(mlp(), family)
    with weft.frozen(bnn, seed=3):
        outside = bnn[0].weight
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(bnn[0].weight, outside)


# gradient accumulation


@each_family
@pytest.mark.parametrize("make", [mlp, conv, Recurrent])
def test_gradient_accumulation(make: Callable[[], nn.Module], family: weft.Family) -> None:
    net = make()
    x, y = data(net, n=12)
    bnn = weft.bayesianize(net, family)
    elbo = objective(bnn)
    with weft.frozen(bnn, seed=2):
        whole = elbo(x, y)
        grads = gradients(bnn, lambda: whole.loss)
        for size in (1, 4, 5):
            bnn.zero_grad()
            total = 0.0
            for part, target in zip(x.split(size), y.split(size), strict=True):
                terms = elbo(part, target)
                assert torch.equal(terms.kl, whole.kl)
                share = terms.loss * len(part) / len(x)
                share.backward()
                total += share.item()
            assert total == pytest.approx(whole.loss.item(), rel=1e-5)
            got = {name: p.grad for name, p in bnn.named_parameters()}
            assert_same(got, grads, rtol=1e-4, atol=1e-6)


# gradient checkpointing


@each_family
@each_way
@pytest.mark.parametrize("estimator", ["shared", "local", "flipout"])
def test_checkpointing_keeps_gradients(
    family: weft.Family, estimator: str, reentrant: bool
) -> None:
    bnn = weft.bayesianize(Deep(), family, estimator=estimator)
    x, y = torch.randn(6, 4, requires_grad=True), torch.randint(3, (6,))
    elbo = objective(bnn)
    plain = gradients(bnn, lambda: elbo(x, y).loss)
    other = gradients(bnn, lambda: elbo(x, y).loss, seed=8)
    assert not torch.equal(plain["head.posteriors.weight.loc"], other["head.posteriors.weight.loc"])
    bnn.reentrant = reentrant
    assert_same(gradients(bnn, lambda: elbo(x, y).loss), plain, rtol=0.0, atol=0.0)


@each_family
@each_way
def test_layer_in_several_checkpoints(family: weft.Family, reentrant: bool) -> None:
    bnn = weft.bayesianize(Deep(repeat=True), family)
    x = torch.randn(6, 4, requires_grad=True)
    whole = gradients(bnn, lambda: bnn(x).square().sum())
    again = gradients(
        bnn, lambda: checkpoint(bnn, x, use_reentrant=reentrant).square().sum()
    )  # the recomputed call of the whole network opens a scope of its own
    assert_same(again, whole, rtol=0.0, atol=0.0)
    with weft.frozen(bnn, seed=4):
        plain = gradients(bnn, lambda: bnn(x).square().sum())
    bnn.reentrant = reentrant
    with pytest.raises(RuntimeError, match=r"used several times .* weft\.frozen\(bnn, seed\)"):
        bnn(x).sum().backward()
    with weft.frozen(bnn, seed=4):
        assert_same(gradients(bnn, lambda: bnn(x).square().sum()), plain, rtol=0.0, atol=0.0)


@each_way
def test_checkpointed_training_inside_frozen_follows_the_parameters(reentrant: bool) -> None:
    """Reentrant checkpoints run forward without gradients: what was kept there must not go stale."""
    start = weft.bayesianize(Deep(), FAMILIES["k_tied"])
    x, y = torch.randn(6, 4, requires_grad=True), torch.randint(3, (6,))
    losses = []
    for way in (None, reentrant):
        bnn = copy.deepcopy(start)
        bnn.reentrant = way
        elbo = objective(bnn)
        optimizer = torch.optim.SGD(bnn.parameters(), lr=0.5)
        losses.append([])
        with weft.frozen(bnn, seed=4):
            for _ in range(3):
                optimizer.zero_grad()
                terms = elbo(x, y)
                terms.loss.backward()
                optimizer.step()
                losses[-1].append(terms.nll.item())
    assert losses[0] == losses[1]


# torch.compile


def assert_compiles(make: Callable[[], nn.Module], backend: str, estimators: list[str]) -> None:
    net = make()
    x, y = data(net)
    bnn = weft.bayesianize(net, FAMILIES["k_tied"])
    elbo = objective(bnn)
    compiled = torch.compile(elbo, fullgraph=True, backend=backend)
    try:
        with weft.using(bnn, "mean"):
            for eager, fused in zip(elbo(x, y), compiled(x, y), strict=True):
                torch.testing.assert_close(eager, fused, rtol=1e-5, atol=1e-5)
            eager = gradients(bnn, lambda: elbo(x, y).loss)
            assert_same(gradients(bnn, lambda: compiled(x, y).loss), eager, rtol=1e-4, atol=1e-5)
        for estimator in estimators:
            with weft.using(bnn, estimator):
                first, second = compiled(x, y), compiled(x, y)
                assert first.nll != second.nll
                assert torch.allclose(first.kl, elbo.kl())
                grads = gradients(bnn, lambda first=first: first.loss)
                assert grads.keys() == {name for name, _ in bnn.named_parameters()}
                assert all(g.isfinite().all() and g.any() for g in grads.values())
    finally:
        torch.compiler.reset()


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize(("make", "estimator"), [(mlp, "local"), (conv, "shared")])
def test_compile_by_inductor(make: Callable[[], nn.Module], estimator: str) -> None:
    assert_compiles(make, "inductor", [estimator])


@pytest.mark.parametrize("make", [conv, Attention])
def test_compile_by_aot_eager(make: Callable[[], nn.Module]) -> None:
    assert_compiles(make, "aot_eager", ["shared"] if make is Attention else ["local", "flipout"])


# torch.func


@each_family
@pytest.mark.parametrize("estimator", ["shared", "local", "flipout"])
def test_vmap_over_draws_has_the_moments_of_a_loop(family: weft.Family, estimator: str) -> None:
    bnn, n = weft.bayesianize(mlp(), family, estimator=estimator), 3000
    x = torch.randn(2, 4)
    with torch.no_grad():
        mapped = torch.func.vmap(lambda _: bnn(x), randomness="different")(torch.zeros(n))
        looped = torch.stack([bnn(x) for _ in range(n)])
    error = (2 * looped.var(0) / n).sqrt()
    assert ((mapped.mean(0) - looped.mean(0)).abs() < 5 * error).all()
    assert ((mapped.var(0) / looped.var(0)).log().abs() < 5 * (2 * 3 / n) ** 0.5).all()


@each_family
def test_stacked_parameters_are_an_ensemble(family: weft.Family) -> None:
    nets = [weft.bayesianize(mlp(), family) for _ in range(2)]
    base, x = copy.deepcopy(nets[0]).to("meta"), torch.randn(5, 4)
    parameters, buffers = stack_module_state(nets)

    def run(p: Grads, b: Grads) -> Tensor:
        return functional_call(base, (p, b), (x,))

    with weft.using(base, "mean"):
        together = torch.func.vmap(run)(parameters, buffers)
    for one, net in zip(together, nets, strict=True):
        torch.testing.assert_close(one, net.eval()(x))
    same, different = (
        torch.func.vmap(run, randomness=kind)(parameters, buffers) for kind in ("same", "different")
    )
    assert same.shape == different.shape == (2, 5, 3)
    different.square().sum().backward()
    for name, stacked in parameters.items():
        assert all(part.any() for part in stacked.grad), name


# precision, copies, export


@each_family
@pytest.mark.parametrize("make", [mlp, conv, Recurrent, Attention])
def test_float64_end_to_end(
    make: Callable[[], nn.Module], family: weft.Family, tmp_path: Path
) -> None:
    net = make().double()
    x, y = data(net)
    x = x.double() if x.is_floating_point() else x
    bnn = weft.bayesianize(net, family)
    elbo = objective(bnn)
    optimizer = torch.optim.Adam(elbo.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        with weft.frozen(bnn, seed=1):
            terms = elbo(x, y)
        terms.loss.backward()
        optimizer.step()
        losses.append(terms.loss.item())
    assert {term.dtype for term in terms} == {torch.float64}
    assert {p.dtype for p in bnn.parameters()} == {torch.float64}
    assert losses[-1] < losses[0]
    weft.save(bnn, tmp_path / "m.safetensors", objective=elbo)
    again = weft.load(tmp_path / "m.safetensors", make().double())
    first, second = (weft.predict(b, x, samples=4, seed=2) for b in (bnn, again))
    assert first.mean.dtype == torch.float64
    assert torch.equal(first.mean, second.mean)
    stored = weft.load_objective(tmp_path / "m.safetensors", again)
    assert torch.equal(stored.kl(), elbo.kl())


@each_family
@pytest.mark.parametrize("where", ["bnn", "elbo"])
def test_ema_and_copies_inside_training(family: weft.Family, where: str) -> None:
    bnn = weft.bayesianize(mlp(), family)
    elbo, (x, y) = objective(bnn), data(mlp())
    tracked = bnn if where == "bnn" else elbo
    ema = AveragedModel(tracked, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    optimizer = torch.optim.SGD(elbo.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        elbo(x, y).loss.backward()
        optimizer.step()
        expected = [
            a.detach().clone() if step == 0 else 0.5 * (a.detach() + e)
            for a, e in zip(tracked.parameters(), ema.parameters(), strict=True)
        ]
        ema.update_parameters(tracked)
        twin = copy.deepcopy(elbo)
        for net in (elbo, twin):
            net.zero_grad()
        with weft.frozen(elbo.bnn, seed=step), weft.frozen(twin.bnn, seed=step):
            grads = [gradients(net, lambda net=net: net(x, y).loss) for net in (elbo, twin)]
        assert_same(*grads, rtol=0.0, atol=0.0)
    for a, e in zip(expected, ema.module.parameters(), strict=True):
        torch.testing.assert_close(a, e.detach())
    averaged = ema.module if where == "bnn" else ema.module.bnn
    assert not any(a is b for a in averaged.modules() for b in bnn.modules())
    ema.train()
    call = (lambda: ema(x)) if where == "bnn" else (lambda: ema(x, y).nll)
    assert not torch.equal(call(), call())
    assert weft.predict(averaged, x, samples=3).mean.shape == (8, 3)


@pytest.mark.parametrize("context", ["using", "frozen"])
def test_copy_made_inside_a_context_is_an_ordinary_network(context: str) -> None:
    """A snapshot taken in the block trains and draws like any other once the block is over."""
    bnn, x = weft.bayesianize(mlp(), FAMILIES["k_tied"]), torch.randn(5, 4)
    with weft.using(bnn, "mean") if context == "using" else weft.frozen(bnn, seed=1):
        twin = copy.deepcopy(bnn)
    assert not torch.equal(twin(x), twin(x))
    assert torch.equal(twin.eval()(x), bnn.eval()(x))


@each_family
@pytest.mark.parametrize("make", [mlp, conv, Attention])
def test_export_of_the_mean_network(make: Callable[[], nn.Module], family: weft.Family) -> None:
    net = make()
    x, _ = data(net)
    bnn = weft.bayesianize(net, family).eval()
    exported, plain = torch.export.export(bnn, (x,)).module(), weft.collapse(bnn)
    with nullcontext() if make is not Attention else torch.no_grad():
        for a, b in zip(tree_leaves(exported(x)), tree_leaves(plain(x)), strict=True):
            torch.testing.assert_close(a, b)
