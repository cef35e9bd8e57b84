"""The smaller Bayesian network: marginals of the posterior, and a mean that is the small plain network."""

import math
from collections import Counter

import pytest
import torch

import kasuri
from tests.compression.networks import NETWORKS, bayesian
from tests.compression.test_exact import compressed


@pytest.mark.parametrize(
    ("name", "family"),
    [
        *((name, kasuri.MeanField()) for name in NETWORKS),
        ("recurrent", kasuri.KTied(rank=2)),
        ("grouped", kasuri.MatrixNormal()),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_mean_of_the_small_posterior_is_the_small_network(
    name: str, family: kasuri.Family
) -> None:
    bnn, x = bayesian(name, family), NETWORKS[name][1](2)
    _, report = compressed(bnn, x, "columns")
    options = {"structure": "columns", "threshold": math.exp(max(report.levels.values()))}
    plain, _ = kasuri.compress(bnn, x, **options)
    small, report = kasuri.compress(bnn, x, keep_posterior=True, **options)
    torch.testing.assert_close(kasuri.collapse(small)(x), plain(x), rtol=0, atol=1e-10)
    before, after = report.variational
    assert after < before
    left, whole = (dict(kasuri.named_posteriors(net)) for net in (small, bnn))
    assert left.keys() == whole.keys()
    for name in left:
        if "weight" in name:  # biases have constants added
            same_variances(left[name], whole[name])
    draws = kasuri.predict(small, x, samples=3)
    assert draws.mean.isfinite().all()


def same_variances(part: kasuri.Posterior, whole: kasuri.Posterior) -> None:
    """Every weight, known by its mean, has the variance that it had; a certain 0 has none."""
    means, variances = (t.flatten().tolist() for t in (whole.mean, whole.variance))
    before = dict(zip(means, variances, strict=True))
    twice = {mean for mean, times in Counter(means).items() if times > 1}
    assert len(twice) < 0.01 * len(means), "means tell weights apart"
    for mean, variance in zip(
        part.mean.flatten().tolist(), part.variance.flatten().tolist(), strict=True
    ):
        if mean not in twice:
            assert variance == pytest.approx(before[mean] if mean else 0.0, rel=1e-6)


def test_a_small_posterior_can_be_trained_and_saved(tmp_path: object) -> None:
    bnn, x = bayesian("mlp", kasuri.MatrixNormal()).float(), torch.randn(40, 6)
    small, _ = kasuri.compress(bnn, x, structure="rows", threshold=0.5, keep_posterior=True)
    assert small[0].out_features < 16
    y = torch.randint(3, (40,))
    elbo = kasuri.ELBO(small, kasuri.Categorical(), kasuri.Normal(1.0), num_data=40)
    loss = elbo(x, y).loss
    loss.backward()
    assert all(p.grad is not None for p in small.parameters())
    kasuri.save(small, tmp_path / "small.safetensors")
    again = kasuri.load(tmp_path / "small.safetensors", kasuri.collapse(small))
    torch.testing.assert_close(again.eval()(x), small.eval()(x))


def test_groups_of_channels_go_with_their_posterior() -> None:
    bnn, x = bayesian("grouped", kasuri.KTied(rank=2)), NETWORKS["grouped"][1](2)
    options = {"structure": "rows", "threshold": 1e9}
    plain, _ = kasuri.compress(bnn, x, **options)
    small, _ = kasuri.compress(bnn, x, keep_posterior=True, **options)
    assert plain.depthwise.groups == small.depthwise.groups < 12
    torch.testing.assert_close(kasuri.collapse(small)(x), plain(x), rtol=0, atol=1e-10)
