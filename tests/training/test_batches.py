"""Laws of batches: every row once, replayable from (seed, epoch), shared fairly, and fast."""

from itertools import product

import pytest
import torch

from kasuri.training import Batches, Processes, compose, crop, flip


def rows(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(2.0 * n).view(n, 2), torch.arange(n)


def order(batches) -> list[int]:
    return torch.cat([y for _, y in batches]).tolist()


def same(a, b) -> bool:
    a, b = list(a), list(b)
    return len(a) == len(b) and all(
        torch.equal(x1, x2) and torch.equal(y1, y2) for (x1, y1), (x2, y2) in zip(a, b, strict=True)
    )


@pytest.mark.parametrize(("n", "size"), list(product([1, 7, 12], [1, 4, 6])))
def test_every_row_once(n, size):
    x, y = rows(n)
    batches = Batches(x, y, size)
    for epoch in range(3):
        got = list(batches.epoch(epoch))
        assert len(got) == len(batches) == -(-n // size)
        assert all(torch.equal(xb[:, 0] / 2, yb.float()) for xb, yb in got), "x and y stay together"
        assert all(len(yb) == size for _, yb in got[:-1])
        assert sorted(order(got)) == list(range(n))


def test_same_batches_for_same_seed_and_epoch_whatever_happened_before():
    x, y = rows(50)
    one, two = Batches(x, y, 8, seed=3), Batches(x, y, 8, seed=3)
    first = [order(one) for _ in range(3)]  # counts up 0, 1, 2
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert order(two.epoch(2)) == first[2], "no history needed"
    assert order(two.epoch(0)) == first[0]
    assert torch.equal(torch.get_rng_state(), state), "the global generator is not touched"
    assert one.next_epoch == 3
    assert two.next_epoch == 0
    two.next_epoch = 1
    assert order(two) == first[1]
    assert len({tuple(o) for o in first}) == 3, "a new order in every epoch"
    assert order(Batches(x, y, 8, seed=4).epoch(0)) != first[0]
    assert order(Batches(x, y, 8, seed=0).epoch(1)) != order(Batches(x, y, 8, seed=1).epoch(0))


def test_start_in_the_middle():
    x, y = torch.rand(50, 3, 6, 6), torch.arange(50)
    batches = Batches(x, y, 8, augment=compose(crop(2), flip))
    full = list(batches.epoch(4))
    for start in range(len(batches) + 1):
        assert same(batches.epoch(4, start=start), full[start:])


def test_batches_before_the_start_are_not_computed():
    calls = []

    def augment(x, generator):
        calls.append(len(x))
        return x

    batches = Batches(*rows(50), 8, augment=augment)
    list(batches.epoch(0, start=5))
    assert calls == [8, 2]


def test_augmentation_is_a_function_of_seed_epoch_batch_and_rank():
    x, y = torch.rand(32, 3, 8, 8), torch.arange(32)

    def make(**options):
        return Batches(x, y, 8, augment=compose(crop(3), flip), **options)

    torch.manual_seed(0)
    first = list(make().epoch(1))
    torch.manual_seed(1)
    assert same(make().epoch(1), first)
    assert not same(make().epoch(2), first)
    assert not same(make(seed=1).epoch(1), first)

    def noise(x, generator):
        return torch.rand(1, generator=generator)

    drawn = [
        xb.item()
        for rank in range(2)
        for xb, _ in Batches(x, y, 8, augment=noise).shared(Processes(rank, 2))
    ]
    assert len(set(drawn)) == len(drawn) == 8, "no two batches share their noise"
    assert torch.equal(make().x, x), "the data itself is not changed"


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("n", [24, 25, 2])
def test_ranks_share_one_order(n, world):
    x, y = rows(n)
    size = 3
    ranks = [Batches(x, y, size * world).shared(Processes(rank, world)) for rank in range(world)]
    assert len({len(b) for b in ranks}) == 1, "everybody has the same number of batches"
    parts = [order(b.epoch(1)) for b in ranks]
    assert len({len(part) for part in parts}) == 1
    seen = [row for part in parts for row in part]
    assert set(seen) == set(range(n)), "nothing is left out"
    assert len(seen) == -(-n // world) * world, "padded no more than needed"
    whole = order(Batches(x, y, size).epoch(1))
    interleaved = [part[i] for i in range(len(parts[0])) for part in parts]
    assert interleaved == [whole[i % n] for i in range(len(seen))], "wrapping around"
    if n % world == 0:
        large = Batches(x, y, size * world).epoch(1)  # batch k of all ranks = one large batch
        for k, (_, big) in enumerate(large):
            got = [i for b in ranks for i in list(b.epoch(1))[k][1].tolist()]
            assert sorted(got) == sorted(big.tolist())


def test_tuples_of_inputs():
    x, y = rows(10)
    batches = Batches((x, y * 10), y, 4)
    for (a, b), target in batches:
        assert torch.equal(a[:, 0], 2.0 * target)
        assert torch.equal(b, target * 10)


def test_refusals():
    x, y = rows(4)
    for args in ((x, y[:3]), ((x, x[:2]), y), ((), y), (torch.tensor(1.0), y)):
        with pytest.raises(ValueError, match="same number of rows"):
            Batches(*args, 2)
    with pytest.raises(ValueError, match="no rows"):
        Batches(x[:0], y[:0], 2)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Batches(x, y, 0)


def test_a_batch_is_a_copy():
    x, y = rows(6)
    for xb, _ in Batches(x, y, 3):
        xb.zero_()
    assert x.sum() > 0
