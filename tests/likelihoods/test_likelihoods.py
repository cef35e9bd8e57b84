"""Likelihoods against torch.distributions; shapes that broadcasting would get wrong."""

import pytest
import torch
from torch import distributions as td

import kasuri


def test_categorical():
    f, y = torch.randn(6, 4), torch.randint(4, (6,))
    expected = td.Categorical(logits=f).log_prob(y)
    torch.testing.assert_close(kasuri.Categorical().log_prob(f, y), expected)
    torch.testing.assert_close(kasuri.Categorical()(f).log_prob(y), expected)


def test_categorical_over_sequences_and_images_sums_over_positions():
    f, y = torch.randn(6, 5, 4), torch.randint(4, (6, 5))
    expected = td.Categorical(logits=f).log_prob(y).sum(1)
    torch.testing.assert_close(kasuri.Categorical().log_prob(f, y), expected)
    f, y = torch.randn(2, 4, 3, 5), torch.randint(4, (2, 3, 5))
    expected = td.Categorical(logits=f.movedim(1, -1)).log_prob(y).sum((1, 2))
    torch.testing.assert_close(kasuri.Categorical(dim=1).log_prob(f, y), expected)


def test_bernoulli_and_gaussian():
    f, y = torch.randn(6, 3), torch.rand(6, 3).round()
    expected = td.Bernoulli(logits=f).log_prob(y).sum(1)
    torch.testing.assert_close(kasuri.Bernoulli().log_prob(f, y), expected)
    expected = td.Normal(f, 0.3).log_prob(y).sum(1)
    torch.testing.assert_close(kasuri.Gaussian(0.3).log_prob(f, y), expected)


def test_one_output_per_example():
    f, y = torch.randn(6), torch.randn(6)
    torch.testing.assert_close(kasuri.Gaussian(2.0).log_prob(f, y), td.Normal(f, 2.0).log_prob(y))


def test_learned_noise_finds_the_residuals():
    likelihood, residuals = kasuri.Gaussian(), 0.25 * torch.randn(5000, 1)
    opt = torch.optim.Adam(likelihood.parameters(), 0.05)
    for _ in range(300):
        opt.zero_grad()
        (-likelihood.log_prob(torch.zeros(5000, 1), residuals).mean()).backward()
        opt.step()
    assert likelihood.scale.item() == pytest.approx(
        residuals.square().mean().sqrt().item(), rel=1e-2
    )


@pytest.mark.parametrize(
    ("likelihood", "f", "y", "hint"),
    [
        (kasuri.Gaussian(1.0), (5, 1), torch.zeros(5), r"unsqueeze"),
        (kasuri.Gaussian(1.0), (5,), torch.zeros(5, 1), r"reshape_as"),
        (kasuri.Bernoulli(), (5, 2), torch.zeros(5), r"every example"),
        (kasuri.Categorical(), (5, 3), torch.zeros(5, 3), r"argmax"),
        (kasuri.Categorical(), (5, 3), torch.zeros(5), r"integer"),
        (kasuri.Categorical(), (5, 3), torch.zeros(4, dtype=torch.long), r"shape \(5,\)"),
    ],
)
def test_mismatched_targets_are_refused(likelihood, f, y, hint):
    with pytest.raises(ValueError, match=hint):
        likelihood.log_prob(torch.zeros(f), y)


def test_scores_are_those_of_the_mixture_over_draws():
    fs, y = torch.randn(7, 5, 3), torch.randint(3, (5,))
    count = torch.tensor(7.0).log()
    for likelihood, law, targets in (
        (kasuri.Categorical(), td.Categorical(logits=fs), y),
        (kasuri.Gaussian(0.4), td.Independent(td.Normal(fs, 0.4), 1), torch.randn(5, 3)),
        (kasuri.Bernoulli(), td.Independent(td.Bernoulli(logits=fs), 1), torch.ones(5, 3)),
    ):
        nll = likelihood.prediction(fs).score(targets)["nll"].float()
        torch.testing.assert_close(-nll, law.log_prob(targets).logsumexp(0) - count)
