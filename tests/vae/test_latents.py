"""Latent families: counts, law of the draws, KL, log-density, gradients, extremes."""

import pytest
import torch
from torch import distributions as td

from kasuri import vae
from tests.vae.models import FAMILIES, covariance, dense

every = pytest.mark.parametrize("latent", FAMILIES, ids=str)


def numbers(latent, batch=4, spread=0.7, seed=0):
    g = torch.Generator().manual_seed(seed)
    made = spread * torch.randn(batch, latent.size, generator=g, dtype=torch.float64)
    return made.requires_grad_()


def test_sizes_are_the_parameter_counts_of_the_paper():
    large = (vae.DiagonalLatent(40), vae.MatrixNormalLatent(20, 2), vae.FullLatent(40))
    few = (vae.DiagonalLatent(9), vae.MatrixNormalLatent(3, 3), vae.FullLatent(9))
    assert [one.size for one in large] == [80, 253, 860]
    assert [one.size for one in few] == [18, 21, 54]
    assert all(one.dimensions == 40 for one in large)
    assert vae.MatrixNormalLatent(2, 20).size == 253  # the caption of Table 3 has it the other way
    assert vae.MatrixNormalLatent(40, 1).size == 861  # as the paper writes its full covariance
    assert vae.KTiedLatent(20, 2, rank=1).size == 62
    assert vae.KTiedLatent(3, 3, rank=2).size == 21


@every
def test_zeros_are_the_prior(latent):
    q = latent(torch.zeros(3, latent.size, dtype=torch.float64))
    torch.testing.assert_close(q.kl(), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(q.variance, torch.ones(3, latent.dimensions, dtype=torch.float64))


@every
def test_kl_entropy_and_moments_are_those_of_the_dense_normal(latent):
    given = numbers(latent)
    q, oracle = latent(given), dense(latent, given)
    prior = td.MultivariateNormal(
        torch.zeros_like(oracle.loc), torch.eye(latent.dimensions).double()
    )
    torch.testing.assert_close(q.kl(), td.kl_divergence(oracle, prior), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(q.entropy(), oracle.entropy(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(q.mean, oracle.mean)
    torch.testing.assert_close(q.variance, oracle.variance)
    assert (q.kl() > 0).all()


@every
def test_log_density_of_a_draw_needs_no_solve_and_is_right(latent):
    given = numbers(latent)
    z, log_q = latent(given).draw(5)
    assert z.shape == (5, 4, latent.dimensions)
    torch.testing.assert_close(log_q, dense(latent, given).log_prob(z), rtol=1e-9, atol=1e-9)
    z, log_q = latent(given).draw()
    torch.testing.assert_close(log_q, dense(latent, given).log_prob(z), rtol=1e-9, atol=1e-9)


@every
def test_draws_have_the_mean_and_covariance_of_the_dense_normal(latent):
    """60,000 draws: entries of a covariance of order v are off by v √(2/60,000) = 0.6 % on average."""
    given = numbers(latent, batch=2).detach()
    torch.manual_seed(0)
    z = latent(given).rsample(60_000)
    for example in range(2):
        sigma = covariance(latent, given[example])
        scale = torch.outer(sigma.diagonal(), sigma.diagonal()).sqrt()
        assert ((torch.cov(z[:, example].T).reshape_as(sigma) - sigma).abs() < 0.03 * scale).all()
        away = z[:, example].mean(0) - given[example, : latent.dimensions]
        assert (away.abs() < 0.025 * sigma.diagonal().sqrt()).all()


@every
def test_examples_of_a_batch_do_not_see_each_other(latent):
    given = numbers(latent, batch=5)
    together = latent(given)
    alone = [latent(given[i : i + 1]) for i in range(5)]
    torch.testing.assert_close(together.kl(), torch.cat([one.kl() for one in alone]))
    torch.testing.assert_close(together.variance, torch.cat([one.variance for one in alone]))
    (gradient,) = torch.autograd.grad(together.rsample()[2].sum() + together.kl()[2], given)
    assert (gradient[[0, 1, 3, 4]] == 0).all()
    assert (gradient[2] != 0).all(), "every number of the encoder matters"


@every
def test_transforms_and_compilation_see_the_plain_formula(latent):
    given = numbers(latent, batch=6).detach()

    def drawn(rows):
        return latent(rows).rsample(), latent(rows).kl()

    z, kl = torch.vmap(drawn, randomness="different")(given.reshape(2, 3, -1))
    torch.testing.assert_close(kl.flatten(), latent(given).kl())
    assert len(z.flatten(0, 1).unique(dim=0)) == 6


@every
@pytest.mark.parametrize("size", [-100.0, 100.0])
def test_extreme_numbers_stay_finite(latent, size):
    given = torch.full((2, latent.size), size, requires_grad=True)
    q = latent(given)
    z, kl = q.rsample(), q.kl()
    assert z.isfinite().all()
    assert kl.isfinite().all()
    assert q.draw(3)[1].isfinite().all()
    (gradient,) = torch.autograd.grad(z.sum() + kl.sum(), given)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("wrong", [0, 2.0, True])
def test_sizes_that_are_no_counts_are_refused(wrong):
    for make in (vae.DiagonalLatent, vae.FullLatent, lambda n: vae.KTiedLatent(3, 3, rank=n)):
        with pytest.raises(ValueError, match="at least 1, got"):
            make(wrong)


def test_an_encoder_of_the_wrong_size_is_told_the_right_one():
    with pytest.raises(ValueError, match=r"54 numbers .* \(2, 18\)"):
        vae.FullLatent(9)(torch.zeros(2, 18))
