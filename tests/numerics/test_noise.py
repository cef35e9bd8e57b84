"""Noise shared between examples: exact for each example and each output; the fused addition."""

import pytest
import torch

from kasuri.numerics import sampling as module
from kasuri.numerics.safe import safe_sqrt
from kasuri.numerics.sampling import add_noise, window_noise

N = 20_000


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
def test_fused_addition_equals_the_plain_formula(examples, monkeypatch):
    y = torch.randn(5, 3, 2, dtype=torch.float64, requires_grad=True)
    variance = torch.rand(5, 3, 2, dtype=torch.float64)
    variance[0] = 0
    variance.requires_grad_()
    fixed = torch.randn(5, 3, 2, dtype=torch.float64)
    monkeypatch.setattr(module, "window_noise", lambda like: fixed)
    monkeypatch.setattr(module, "normal_like", lambda like: fixed)
    fused = add_noise(y, variance, examples=examples)
    plain = y + safe_sqrt(variance) * fixed
    torch.testing.assert_close(fused, plain)
    weights = torch.randn_like(fixed)
    grads = [torch.autograd.grad((v * weights).sum(), (y, variance)) for v in (fused, plain)]
    torch.testing.assert_close(grads[0][0], grads[1][0])
    torch.testing.assert_close(grads[0][1][1:], grads[1][1][1:], rtol=1e-9, atol=1e-9)
    assert torch.isfinite(grads[0][1]).all()  # where the variance is 0 any finite number will do


def test_zero_variance_adds_nothing():
    y = torch.randn(4, 3)
    assert torch.equal(add_noise(y, torch.zeros(4, 3), examples=True), y)
