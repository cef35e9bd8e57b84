"""Batches of many members at once are the batches of each."""

import pytest
import torch

from kasuri.training.batches import Batches
from kasuri.training.gathering import Gathered


@pytest.mark.parametrize("shared", [True, False])
def test_gathered_batches_are_those_of_the_members(shared):
    sets = [(torch.randn(11, 3, 2), torch.randn(11, 1)) for _ in range(2)]
    which = [0, 0, 0] if shared else [1, 0, 1]
    sources = [Batches(*sets[one], 4, seed=seed) for seed, one in enumerate(which)]
    gathered = Gathered(sources)
    for epoch in range(2):
        together = list(gathered.epoch(epoch))
        assert [len(x[0]) for x, _ in together] == [4, 4, 3]
        for member, source in enumerate(sources):
            for (x, y), (xs, ys) in zip(source.epoch(epoch), together, strict=True):
                assert torch.equal(x, xs[member])
                assert torch.equal(y, ys[member])


def test_a_data_set_that_members_share_is_held_once():
    x, y = torch.randn(5, 2), torch.randn(5, 1)
    gathered = Gathered([Batches(x, y, 2, seed=seed) for seed in range(3)])
    assert gathered.x is x
    assert gathered.y is y
