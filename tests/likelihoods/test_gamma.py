"""Noise with a Gamma distributed precision against scipy, torch.distributions and Monte Carlo."""

import itertools
import math

import pytest
import torch
from scipy import integrate, special, stats
from torch import distributions as td

import kasuri
from kasuri.numerics.mixture import mixture_cdf, mixture_quantile

SHAPES = [(0.7, 1.9), (1.0, 1.0), (6.0, 6.0), (56.3, 3.2), (4000.0, 250.0)]


def noise(a, b, prior=(6.0, 6.0), learn="gradient", dtype=torch.float64):
    """The likelihood with this posterior; a and b are numbers or lists, one number per output."""
    a, b = torch.as_tensor(a, dtype=dtype), torch.as_tensor(b, dtype=dtype)
    made = kasuri.GammaGaussian(prior, learn, outputs=len(a) if a.dim() else None).to(dtype)
    with torch.no_grad():
        made.log_spread.copy_(-0.5 * a.log())
        made.log_scale.copy_(0.5 * (b / a).log())
    return made


def over_precision(function, a, b):
    """∫ function(τ) Gamma(τ; a, b) dτ by adaptive quadrature over the probability of τ."""
    gamma_law = stats.gamma(a, scale=1 / b)
    ends = gamma_law.ppf([1e-13, 0.01, 0.5, 0.99, 1 - 1e-13])
    return sum(
        integrate.quad(lambda t: function(t) * gamma_law.pdf(t), *piece, epsabs=1e-13)[0]
        for piece in itertools.pairwise(ends)
    )


@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize("residual", [0.0, 0.4, -3.0])
def test_expected_log_likelihood_is_the_integral_over_the_precision(a, b, residual):
    f, y = torch.zeros(1, 1).double(), torch.full((1, 1), residual, dtype=torch.float64)
    oracle = over_precision(lambda t: stats.norm.logpdf(residual, scale=t**-0.5), a, b)
    got = noise(a, b).expected_log_prob(f, y).item()
    assert got == pytest.approx(oracle, abs=1e-8, rel=1e-8)


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_the_kl_is_that_of_torch_distributions(a, b):
    for prior in ((6.0, 6.0), (1.0, 1.0), (0.3, 8.0)):
        ours = noise(a, b, prior).kl().item()
        laws = [td.Gamma(*torch.tensor(pair, dtype=torch.float64)) for pair in ((a, b), prior)]
        assert ours == pytest.approx(td.kl_divergence(*laws).item(), rel=1e-9, abs=1e-10)
    assert noise(a, b, prior=(a, b)).kl().item() == pytest.approx(0, abs=1e-9)


def test_the_kl_of_several_precisions_is_their_sum():
    many = noise([3.0, 60.0], [2.0, 9.0]).kl()
    torch.testing.assert_close(many, noise(3.0, 2.0).kl() + noise(60.0, 9.0).kl())


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_a_draw_predicts_a_student_t(a, b):
    """Against scipy, and against the integral that it is."""
    likelihood = noise(a, b)
    f, y = torch.randn(20, 1).double(), 2 * torch.randn(20, 1).double()
    oracle = stats.t.logpdf(y, 2 * a, loc=f, scale=math.sqrt(b / a))
    got = likelihood.log_prob(f, y).detach().unsqueeze(1)
    torch.testing.assert_close(got, torch.as_tensor(oracle), rtol=1e-9, atol=1e-9)
    law = likelihood(f)
    assert law.df[0].item() == pytest.approx(2 * a)
    assert law.scale[0].item() == pytest.approx(math.sqrt(b / a))
    r = 1.3 * math.sqrt(b / a)
    integral = over_precision(lambda t: stats.norm.pdf(r, scale=t**-0.5), a, b)
    assert likelihood.log_prob(f, f + r)[0].item() == pytest.approx(math.log(integral), abs=1e-7)
    assert (likelihood.expected_log_prob(f, y) < likelihood.log_prob(f, y)).all()  # Jensen


def test_single_precision_is_as_good_for_many_data():
    """Log Γ(a + ½) - log Γ(a) in single precision would be off by a hundredth here."""
    a, r = 22_871.0, torch.linspace(-2, 2, 9).unsqueeze(1)
    got = noise(a, a / 3, dtype=torch.float32).log_prob(torch.zeros(9, 1), r).detach()
    oracle = stats.t.logpdf(r[:, 0].double(), 2 * a, scale=math.sqrt(1 / 3))
    torch.testing.assert_close(got.double(), torch.as_tensor(oracle), rtol=0, atol=2e-4)
    expected = noise(a, a / 3, dtype=torch.float32).expected_log_prob(torch.zeros(9, 1), r)
    plain = td.Normal(0, 3**-0.5).log_prob(r[:, 0])
    torch.testing.assert_close(expected.detach(), plain, rtol=0, atol=2e-4)


def test_outputs_with_one_precision_are_scored_jointly():
    """Against 400,000 draws of the precision: the outputs share each of them."""
    torch.manual_seed(0)
    f, y = torch.randn(3, 4).double(), torch.randn(3, 4).double()
    taus = td.Gamma(torch.tensor(3.0).double(), 2.0).sample((400_000, 1, 1))
    logs = td.Normal(f, taus.rsqrt()).log_prob(y).sum(-1)
    oracle = logs.logsumexp(0) - math.log(len(taus))
    torch.testing.assert_close(noise(3.0, 2.0).log_prob(f, y).detach(), oracle, rtol=0, atol=0.01)
    mean = noise(3.0, 2.0).expected_log_prob(f, y).detach()
    torch.testing.assert_close(mean, logs.mean(0), rtol=0, atol=0.03)


def test_outputs_with_precisions_of_their_own_are_separate_problems():
    f, y = torch.randn(5, 7, 2).double(), torch.randn(5, 7, 2).double()  # positions, outputs
    both = noise([3.0, 60.0], [2.0, 9.0])
    for method in ("log_prob", "expected_log_prob"):
        apart = [
            getattr(noise(a, b), method)(f[..., k], y[..., k])
            for k, (a, b) in enumerate([(3.0, 2.0), (60.0, 9.0)])
        ]
        torch.testing.assert_close(getattr(both, method)(f, y), apart[0] + apart[1])


@pytest.mark.parametrize(("a", "b"), [(6.0, 6.0), (56.3, 3.2), (300.0, 20.0), (4000.0, 250.0)])
def test_mixture_over_draws(a, b):
    """Density, distribution function, mean and variance, against scipy's Student-t."""
    torch.manual_seed(1)
    fs, y = torch.randn(7, 5, 1).double(), torch.randn(5, 1).double()
    mixture = noise(a, b).prediction(fs)
    scores = mixture.score(y)
    law = {"df": 2 * a, "loc": fs, "scale": math.sqrt(b / a)}
    oracles = {
        "nll": math.log(7) - special.logsumexp(stats.t.logpdf(y, **law), axis=0)[:, 0],
        "pit": stats.t.cdf(y, **law).mean(0),
    }
    for name, oracle in oracles.items():
        got = scores[name].detach()
        torch.testing.assert_close(got, torch.as_tensor(oracle), rtol=0, atol=1e-6)
    torch.testing.assert_close(mixture.mean.detach(), fs.mean(0))
    spread = b / (a - 1) + fs.var(0, correction=0)
    torch.testing.assert_close(mixture.std.square(), spread)


def test_distribution_function_of_few_degrees_of_freedom():
    z = torch.linspace(-9, 9, 181).double()
    for a, tolerance in ((1.5, 1e-3), (3.0, 5e-5), (6.0, 1e-6), (19.9, 1e-7), (1e7, 1e-12)):
        oracle = torch.as_tensor(stats.t.cdf(z, 2 * a))
        got = mixture_cdf(z, torch.zeros(1, 181).double(), torch.ones(1).double(), torch.tensor(a))
        assert (got - oracle).abs().max() < tolerance


@pytest.mark.parametrize("a", [6.0, 30.0, 2000.0])
def test_quantiles_of_mixtures(a):
    torch.manual_seed(2)
    means, scale = torch.randn(5, 3).double(), torch.tensor([0.2, 1.0, 3.0]).double()
    shape = torch.tensor(a)
    for p in (0.005, 0.3, 0.975):
        y = mixture_quantile(means, scale, p, shape)
        below = torch.as_tensor(stats.t.cdf(y, 2 * a, loc=means, scale=scale).mean(0))
        torch.testing.assert_close(below, torch.full_like(below, p), rtol=0, atol=2e-6)


def test_variance_is_infinite_up_to_two_degrees_of_freedom():
    for a in (0.5, 1.0):
        assert noise(a, 2.0).moments(torch.zeros(3, 1))[1].isinf().all()
    taus = td.Gamma(torch.tensor(8.0), 2.0).sample((200_000,))
    variance = noise(8.0, 2.0).moments(torch.zeros(3, 1))[1]
    torch.testing.assert_close(variance, (1 / taus).mean().expand(3, 1), rtol=0.01, atol=0)


def test_extreme_parameters_stay_finite_and_have_gradients_that_lead_back():
    f, y = torch.zeros(4, 1), torch.randn(4, 1)
    for spread in (-100.0, 100.0):
        for scale in (-100.0, 100.0):
            likelihood = kasuri.GammaGaussian()
            with torch.no_grad():
                likelihood.log_spread.fill_(spread)
                likelihood.log_scale.fill_(scale)
            total = likelihood.expected_log_prob(f, y).sum() - likelihood.kl()
            assert total.isfinite()
            assert likelihood.log_prob(f, y).isfinite().all()
            (-total).backward()
            grads = [p.grad for p in likelihood.parameters()]
            assert all(grad.isfinite() for grad in grads)
            assert math.copysign(1, likelihood.log_scale.grad.item()) == scale / 100


@pytest.mark.parametrize("method", ["log_prob", "expected_log_prob"])
def test_vmap_and_compile(method):
    fs, y = torch.randn(3, 5, 2), torch.randn(5, 2)
    for likelihood in (noise(7.0, 2.0, dtype=torch.float32), kasuri.HeteroscedasticGaussian()):
        apply = getattr(likelihood, method)
        inputs = fs if likelihood.kl() is not None else torch.randn(3, 5, 4)
        each = torch.stack([apply(f, y) for f in inputs])
        together = torch.func.vmap(apply, in_dims=(0, None))(inputs, y)
        torch.testing.assert_close(together, each)
        compiled = torch.compile(apply, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(inputs[0], y), each[0])


F, Y = torch.zeros(4, 1), torch.zeros(4, 1)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        *(
            (lambda prior=prior: kasuri.GammaGaussian(prior), ValueError)
            for prior in ((0.0, 1.0), (1.0,), (1.0, math.inf), (1.0, math.nan), 6, ("a", "b"))
        ),
        (lambda: kasuri.GammaGaussian(learn="no"), ValueError),
        (lambda: kasuri.GammaGaussian(outputs=0), ValueError),
        (lambda: kasuri.GammaGaussian(outputs=2.5), ValueError),
        (lambda: kasuri.GammaGaussian(outputs=2).log_prob(torch.ones(4, 3), F), ValueError),
        (lambda: kasuri.GammaGaussian().log_prob(F, Y.squeeze()), ValueError),
        (lambda: kasuri.GammaGaussian().update(F, Y, 4), ValueError),
        (lambda: kasuri.Gaussian().update(F, Y, 4), TypeError),
        (lambda: kasuri.Gaussian("a"), ValueError),
        (lambda: kasuri.Gaussian(0.0), ValueError),
        (lambda: kasuri.Gaussian(float("inf")), ValueError),
        (lambda: kasuri.HeteroscedasticGaussian("a"), ValueError),
    ],
)
def test_what_cannot_be_is_refused(call, error):
    with pytest.raises(error, match=r"Gaussian|learn='no'|outputs must be|scale=.*must be"):
        call()
