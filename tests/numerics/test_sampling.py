"""Draws of independent normals against the plain formula, and noise shared between examples."""

import pytest
import torch

from kasuri.numerics.sampling import add_noise, sample_normal, window_noise

N = 20_000


@pytest.mark.parametrize("shape", [(7, 16), (50,), (3, 7, 16)])
def test_draw_and_gradients_equal_the_plain_formula(shape):
    mean, log_scale = torch.randn(2, *shape, dtype=torch.float64)
    inputs = (mean.requires_grad_(), log_scale.requires_grad_())
    torch.manual_seed(1)
    draw = sample_normal(*inputs)
    torch.manual_seed(1)
    expected = mean + log_scale.exp() * torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(draw, expected)
    weights = torch.randn_like(draw)
    got, want = (torch.autograd.grad((v * weights).sum(), inputs) for v in (draw, expected))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("shape", [(50, 40), (50, 3), (20, 3, 4, 5), (1, 7), (6, 2, 2)])
def test_no_example_and_no_output_uses_a_random_number_twice(shape):
    noise = window_noise(torch.zeros(shape))
    assert noise.shape == shape
    flat = noise.reshape(shape[0], -1)
    for lines in (flat, flat.T):
        for line in lines:
            assert len(set(line.tolist())) == len(line)


def test_moments_of_window_noise():
    many = torch.stack([window_noise(torch.zeros(3, 4)) for _ in range(N)])
    assert (many.mean(0).abs() < 6 / N**0.5).all()
    assert ((many.var(0) - 1).abs() < 6 * (2 / N) ** 0.5).all()
    within = torch.einsum("nbi,nbj->bij", many, many) / N - torch.eye(4)
    assert (within.abs() < 6 * (2 / N) ** 0.5).all()
    between = torch.einsum("nbi,nci->ibc", many, many) / N - torch.eye(3)
    assert (between.abs() < 6 * (2 / N) ** 0.5).all()


@pytest.mark.parametrize("examples", [True, False])
def test_noise_of_this_variance_is_added(examples):
    y, variance = torch.randn(N, 3), torch.tensor([0.0, 1.0, 4.0]).expand(N, 3)
    added = add_noise(y, variance, examples=examples) - y
    assert torch.equal(added[:, 0], torch.zeros(N))
    assert ((added[:, 1:].var(0) / variance[0, 1:] - 1).abs() < 6 * (2 / N) ** 0.5).all()
