"""Blocked draws against the plain formula under the same noise."""

import pytest
import torch

from kasuri.numerics import low_rank, sampling


def leaves(*shapes):
    return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]


def normal(mean, log_scale, noise):
    return mean + log_scale.exp() * noise


def tied(mean, log_rows, log_columns, noise):
    return mean + low_rank.product(log_rows, log_columns) * noise


CASES = {
    "normal": (sampling.sample_normal, normal, [(7, 16), (7, 16)]),
    "vector": (sampling.sample_normal, normal, [(50,), (50,)]),
    "low rank": (sampling.sample_low_rank, tied, [(7, 16), (2, 7), (2, 16)]),
    "rank one": (sampling.sample_low_rank, tied, [(7, 16), (1, 7), (1, 16)]),
    "blocks": (sampling.sample_low_rank, tied, [(3, 7, 16), (3, 2, 7), (3, 2, 16)]),
}


@pytest.mark.parametrize("block", [32, 1 << 16])
@pytest.mark.parametrize(("sample", "plain", "shapes"), CASES.values(), ids=CASES)
def test_draw_and_gradients_equal_the_plain_formula(sample, plain, shapes, block, monkeypatch):
    monkeypatch.setattr(sampling, "BLOCK", block)
    inputs = leaves(*shapes)
    torch.manual_seed(1)
    draw = sample(*inputs)
    torch.manual_seed(1)
    with torch.no_grad():
        assert torch.equal(sample(*inputs), draw)  # the path without gradients: same numbers
    still = [inputs[0].detach().zero_(), *inputs[1:]]
    torch.manual_seed(1)
    with torch.no_grad():
        noise = sample(*still) / plain(*still, torch.ones(shapes[0], dtype=torch.float64))
    again = [i.detach().clone().requires_grad_() for i in inputs]
    again[0].data = draw.detach() - plain(torch.zeros_like(again[0]), *again[1:], noise).detach()
    expected = plain(*again, noise)
    torch.testing.assert_close(draw, expected)
    weights = torch.randn_like(draw)
    got = torch.autograd.grad((draw * weights).sum(), inputs)
    want = torch.autograd.grad((expected * weights).sum(), again)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("sample", "plain", "shapes"), CASES.values(), ids=CASES)
def test_moments(sample, plain, shapes):
    inputs = [i.detach() for i in leaves(*shapes)]
    draws = torch.stack([sample(*inputs) for _ in range(5000)])
    scale = plain(torch.zeros(()), *inputs[1:], torch.ones(())).double()
    assert ((draws.mean(0) - inputs[0]).abs() < 6 * scale / 5000**0.5).all()
    assert ((draws.var(0) / scale.square() - 1).abs() < 6 * (2 / 5000) ** 0.5).all()


def test_draws_do_not_share_memory():
    """The scratch memory of one draw is never part of another."""
    mean, log_scale = torch.zeros(300, 400), torch.zeros(300, 400)
    first = sampling.sample_normal(mean, log_scale)
    copy = first.clone()
    sampling.sample_normal(mean, log_scale)
    assert torch.equal(first, copy)
