"""Safe elementary functions: right where the plain ones are, finite where they are not."""

import pytest
import torch

from kasuri.numerics import safe
from kasuri.numerics.mixture import mixture_cdf, mixture_quantile
from kasuri.streams import mix, normal, seeded

FUNCTIONS = {
    "safe_sqrt": (safe.safe_sqrt, torch.sqrt),
    "capped_exp": (safe.capped_exp, torch.exp),
    "sum_squares": (safe.sum_squares, lambda x: x.square().sum()),
    "soft_min": (lambda x: safe.soft_min(x, 2.0), lambda x: 1 / (1 / x + 0.5)),
}


@pytest.mark.parametrize(("function", "plain"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_equals_the_plain_formula_and_its_gradient(function, plain):
    x = (torch.rand(4, 3, dtype=torch.float64) + 0.1).requires_grad_()
    torch.testing.assert_close(function(x), plain(x), rtol=1e-14, atol=0)
    assert torch.autograd.gradcheck(function, (x,))
    batched = torch.vmap(function)(x)
    torch.testing.assert_close(batched, torch.stack([plain(row) for row in x]))


@pytest.mark.parametrize("name", ["safe_sqrt", "capped_exp", "sum_squares"])
def test_compiled_form_equals_the_fused_one(name):
    x = torch.tensor([0.0, 0.5, 40.0], requires_grad=True)
    function = getattr(safe, name)
    compiled = torch.compile(lambda v: function(v).sum(), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), function(x).sum())
    (got,) = torch.autograd.grad(compiled(x), x)
    (want,) = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(got, want)


def test_safe_sqrt_at_zero_has_zero_gradient():
    x = torch.zeros(3, requires_grad=True)
    safe.safe_sqrt(x).sum().backward()
    assert torch.equal(x.grad, torch.zeros(3))


def test_capped_exp_is_finite_and_its_gradient_points_back():
    x = torch.tensor([100.0], requires_grad=True)
    y = safe.capped_exp(x)
    assert torch.isfinite(y.square())
    assert torch.autograd.grad(y, x)[0] > 0


def test_soft_min_stays_below_its_ceiling_and_inverts():
    x = torch.logspace(-6, 3, 50, dtype=torch.float64)
    y = safe.soft_min(x, 0.2)
    assert (y < 0.2).all()
    torch.testing.assert_close(safe.soft_min_inverse(y, 0.2), x, rtol=1e-9, atol=0)


def test_mix_spreads_neighbouring_seeds():
    seeds = {mix(seed, draw) for seed in range(100) for draw in range(100)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_seeded_leaves_the_generator_alone():
    torch.manual_seed(3)
    expected = torch.randn(2)
    torch.manual_seed(3)
    with seeded(1):
        inside = normal((2,))
    assert torch.equal(torch.randn(2), expected)
    with seeded(1):
        assert torch.equal(normal((2,)), inside)


@pytest.mark.parametrize("concentration", [None, 6.0])
def test_quantiles_of_components_far_apart(concentration):
    """Newton's method alone would leave: there is no density between the components."""
    means = torch.tensor([-1e4, -1.0, 0.0, 1e4]).double().unsqueeze(-1)
    a = None if concentration is None else torch.tensor(concentration)
    for probability in (0.1, 0.25, 0.6, 0.8, 0.9):
        y = mixture_quantile(means, torch.ones(1).double(), probability, a)
        back = mixture_cdf(y, means, torch.ones(1).double(), a)
        torch.testing.assert_close(back, torch.full((1,), probability).double())
