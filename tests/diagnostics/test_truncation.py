"""Truncation against numpy's SVD; the result is a network like any other."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import kasuri
from kasuri.diagnostics import truncate
from kasuri.network.convert import replace_posteriors
from kasuri.network.random import conversion_of
from kasuri.posteriors.masked import Masked, masked
from kasuri.posteriors.mean_field import MeanFieldPosterior
from tests.diagnostics.networks import (
    INPUTS,
    Plain,
    Recurrent,
    dense,
    randomised,
    set_scale,
)

FAMILIES = {
    "mean-field": kasuri.MeanField(scale=0.1),
    "3-tied": kasuri.KTied(rank=3, scale=0.1),
    "3-tied, bounded": kasuri.KTied(rank=3, scale=0.1, max_scale=0.9),
    "own": Plain(),
}


def cut(scale, rank):
    """max(rank-k SVD, minimum) by numpy, matrix by matrix."""
    done = []
    for matrix in scale.detach().double().numpy().reshape(-1, *scale.shape[-2:]):
        u, s, vt = np.linalg.svd(matrix, full_matrices=False)
        low = sum(s[k] * np.outer(u[:, k], vt[k]) for k in range(min(rank, len(s))))
        done.append(np.maximum(low, matrix.min()))
    return torch.from_numpy(np.stack(done)).reshape(scale.shape)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize(("make", "rank"), list(zip(INPUTS, (1, 2, 2), strict=True)))
def test_scales_are_those_of_numpy_and_means_stay(family, make, rank):
    bnn = randomised(make(), family, spread=0.3, blocks=True)
    before = copy.deepcopy(bnn.state_dict())
    small = truncate(bnn, rank)
    assert all(torch.equal(before[key], value) for key, value in bnn.state_dict().items())
    olds, news = dict(kasuri.named_posteriors(bnn)), dict(kasuri.named_posteriors(small))
    assert list(olds) == list(news)
    for name, old in olds.items():
        new = news[name]
        assert torch.equal(old.mean, new.mean)
        assert new.loc.data_ptr() != old.loc.data_ptr()
        if len(old.shape) < 2:
            assert torch.equal(old.scale, new.scale)
            continue
        expected = cut(old.scale, rank)
        torch.testing.assert_close(new.scale.double(), expected, rtol=2e-4, atol=1e-7)
        assert isinstance(new, MeanFieldPosterior if rank < min(old.shape[-2:]) else type(old))
        assert new.scale.dtype == old.loc.dtype


def test_full_rank_changes_nothing_at_all():
    bnn = randomised(dense(), kasuri.MeanField())
    same = truncate(bnn, 100)
    assert all(torch.equal(a, b) for a, b in zip(bnn.parameters(), same.parameters(), strict=True))


def test_tied_weights_stay_one_posterior():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(9, 5), nn.Linear(5, 9, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x):
            return self.head(self.embedding(x))

    small = truncate(randomised(Tied(), kasuri.MeanField()), 1)
    assert small.embedding.posteriors.weight is small.head.posteriors.weight
    scale = small.head.posteriors.weight.scale.detach().double()
    assert torch.linalg.matrix_rank(scale, rtol=1e-5) == 1


def test_modes_and_flags_are_kept_and_bounds_are_not():
    bnn = randomised(dense(), kasuri.KTied(rank=2, max_scale=0.5)).eval()
    dict(kasuri.named_posteriors(bnn))["0.weight"].loc.requires_grad_(False)
    small = truncate(bnn, 1)
    q = dict(kasuri.named_posteriors(small))["0.weight"]
    assert (q.training, q.loc.requires_grad, q.log_scale.requires_grad) == (False, False, True)
    families = [conversion_of(layer).families["weight"] for layer in (small[0], small[2])]
    assert families == [kasuri.MeanField()] * 2


@pytest.mark.parametrize("rank", [0, True])
def test_impossible_truncations_are_refused(rank):
    with pytest.raises(ValueError, match=f"got {rank}"):
        truncate(randomised(Recurrent(), kasuri.MeanField()), rank)


def test_posteriors_without_a_matrix_of_scales_stay_as_they_are():
    mixed = kasuri.bayesianize(dense(), kasuri.MatrixNormal(), where="0", bias=False)
    mixed = kasuri.bayesianize(mixed, kasuri.MeanField(), where="2")
    small = truncate(mixed, 1)
    assert type(small[0].posteriors.weight) is type(mixed[0].posteriors.weight)
    assert torch.linalg.matrix_rank(small[2].posteriors.weight.scale, rtol=1e-4) == 1
    hidden = masked(mixed[2].posteriors.weight, torch.eye(3, 9).bool())
    replace_posteriors(mixed, {"2.weight": (hidden, Masked(family=kasuri.MeanField()))})
    with pytest.raises(ValueError, match="independent"):
        truncate(mixed, 1)
    with pytest.raises(ValueError, match="independent"):
        truncate(kasuri.bayesianize(dense(), kasuri.Point()), 1)
    bnn = randomised(dense(), kasuri.MeanField())
    set_scale(bnn[0].posteriors.weight, torch.zeros(9, 7))
    with pytest.raises(ValueError, match=r"'0\.weight' are 0"):
        truncate(bnn, 1)
