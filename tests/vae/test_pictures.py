"""Reconstructions, draws from the prior and traversals are what the decoder gives where it is asked."""

import torch

from kasuri import vae
from tests.vae.models import patterns, small


def test_reconstructions_are_pixel_probabilities_at_the_mean():
    model, (x, _) = small(), patterns(10)
    with torch.no_grad():
        expected = torch.sigmoid(model.net.decoder(model.posterior(x).mean))
    torch.testing.assert_close(vae.reconstruct(model, x), expected)
    assert torch.equal(vae.reconstruct(model, x), vae.reconstruct(model, x))


def test_draws_from_the_prior_are_spread_as_the_decoder_says():
    model = small(vae.DiagonalLatent(2))
    with torch.no_grad():
        z = torch.randn(20_000, 2)
        expected = torch.sigmoid(model.net.decoder(z)).mean(0)
    torch.testing.assert_close(vae.sample(model, 20_000).mean(0), expected, atol=0.01, rtol=0)


def test_traversals_move_one_latent_variable_and_leave_the_others():
    model, (x, _) = small(vae.FullLatent(4)), patterns(10)
    found = vae.traverse(model, x[0], units=[2, 0], span=2.0, steps=5)
    assert found.shape == (2, 5, 12)
    with torch.no_grad():
        z = model.posterior(x[:1]).mean.repeat(5, 1)
        z[:, 2] = torch.linspace(-2, 2, 5)
        torch.testing.assert_close(found[0], torch.sigmoid(model.net.decoder(z)))
        z = model.posterior(x[:1]).mean.clone()
        z[0, 0] = 0.0
        torch.testing.assert_close(found[1, 2], torch.sigmoid(model.net.decoder(z))[0])
