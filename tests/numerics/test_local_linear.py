"""The fused local reparameterisation against the plain formula under the same noise."""

import pytest
import torch

from kasuri.numerics import local_linear as module
from kasuri.numerics.local_linear import LowRankLayer


def local_linear(x, *layer):
    return module.local_linear(x, LowRankLayer(*layer))


def inputs(rank, bias, bias_variance, batch=(6,), dtype=torch.float64):
    x = torch.randn(*batch, 5, dtype=dtype)
    x[..., 0, :] = 0  # a row without variance, if the bias has none
    shapes = [(4, 5), (rank, 4), (rank, 5), (4,), (4,)]
    values = [torch.randn(s, dtype=dtype) for s in shapes]
    values[4] = values[4].square()
    kept = [x, *values[:3], values[3] if bias else None, values[4] if bias_variance else None]
    return [v if v is None else v.requires_grad_() for v in kept]


@pytest.mark.parametrize("batch", [(6,), (3, 2)])
@pytest.mark.parametrize(("bias", "bias_variance"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("size", [10, 1000])
def test_fused_equals_plain_in_value_and_every_gradient(
    rank, bias, bias_variance, batch, size, monkeypatch
):
    monkeypatch.setattr(module, "SLICE", size)  # several slices of the batch, or one
    arguments = inputs(rank, bias, bias_variance, batch)
    given = [a for a in arguments if a is not None]
    noise = torch.randn(6, 4, dtype=torch.float64)
    monkeypatch.setattr(module, "_noise", lambda *_: noise)
    monkeypatch.setattr(module, "normal_like", lambda like: noise.reshape(like.shape))
    fused, plain = (
        local_linear(*arguments),
        module._plain(arguments[0], LowRankLayer(*arguments[1:])),
    )
    torch.testing.assert_close(fused, plain, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(plain)
    got = torch.autograd.grad((fused * weights).sum(), given)
    want = torch.autograd.grad((plain * weights).sum(), given)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_moments_of_the_fused_draw():
    x, mean, rows, columns, bias, spread = inputs(2, True, True)
    many = x.detach().repeat(20_000, 1)
    with torch.no_grad():
        y = local_linear(many, mean, rows, columns, bias, spread).reshape(20_000, 6, 4)
        sigma = rows.exp().T @ columns.exp()
        variance = x.square() @ sigma.square().T + spread
        centre = x @ mean.T + bias
    assert ((y.mean(0) - centre).abs() < 6 * (variance / 20_000).sqrt()).all()
    assert ((y.var(0) / variance - 1).abs() < 6 * (2 / 20_000) ** 0.5).all()


def test_backward_twice_gives_the_same_gradient():
    arguments = inputs(2, True, True)
    loss = local_linear(*arguments).square().sum()
    first = torch.autograd.grad(loss, arguments[1], retain_graph=True)[0].clone()
    assert torch.equal(first, torch.autograd.grad(loss, arguments[1])[0])


def test_the_first_layer_computes_no_input_gradient():
    arguments = inputs(2, True, True)
    arguments[0] = arguments[0].detach()
    local_linear(*arguments).sum().backward()
    assert arguments[0].grad is None
    assert all(a.grad is not None for a in arguments[1:])


def test_autocast_and_transforms_take_the_plain_formula(monkeypatch):
    def forbidden(*_):
        raise AssertionError("fused form used")

    monkeypatch.setattr(module._LocalLinear, "apply", forbidden)
    arguments = [a.detach().float() for a in inputs(2, True, True)]
    with torch.autocast("cpu", torch.bfloat16):
        assert local_linear(*arguments).shape == (6, 4)
    draws = torch.vmap(lambda _: local_linear(*arguments), randomness="different")(torch.zeros(3))
    assert draws.shape == (3, 6, 4)
    with pytest.raises(AssertionError, match="fused"):
        local_linear(*arguments)


def test_repeated_inputs_give_the_same_law_and_notice_every_change():
    arguments = [a.detach() for a in inputs(2, True, True)]
    x, mean = arguments[:2]
    noise = torch.randn(6, 4, dtype=torch.float64)
    with module.repeating([x]), torch.no_grad():
        first = draw_with(noise, arguments)
        assert torch.equal(draw_with(noise, arguments), first)  # from memory
        torch.testing.assert_close(first, draw_outside(noise, arguments))
        mean += 1
        torch.testing.assert_close(draw_with(noise, arguments), draw_outside(noise, arguments))
        x *= 2
        torch.testing.assert_close(draw_with(noise, arguments), draw_outside(noise, arguments))
    assert not module._memory()


def draw_with(noise, arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_noise", lambda *_: noise)
        return local_linear(*arguments)


def draw_outside(noise, arguments):
    """The same draw from a copy of the input, which is not remembered."""
    return draw_with(noise, [arguments[0].clone(), *arguments[1:]])


def test_another_view_of_a_repeated_input_is_another_input():
    """Same address and shape, other strides: a transposed square batch."""
    arguments = [a.detach() for a in inputs(2, True, True, batch=(5,))]
    x, noise = arguments[0], torch.zeros(5, 4, dtype=torch.float64)
    with module.repeating([x]), torch.no_grad():
        for view in (x, x.T, x):
            got = draw_with(noise, [view, *arguments[1:]])
            torch.testing.assert_close(got, view @ arguments[1].T + arguments[4])


def test_repeating_forgets_after_an_exception():
    with pytest.raises(RuntimeError, match="boom"), module.repeating([torch.zeros(1)]):
        raise RuntimeError("boom")
    assert not module._memory()


def test_positions_of_a_sequence_share_no_noise():
    x, zeros = torch.ones(8, 5, 6), torch.zeros
    y = local_linear(x, zeros(40, 6), zeros(1, 40), zeros(1, 6), None, None)
    assert len(set(y.flatten().tolist())) == y.numel()  # all have the same mean and variance
