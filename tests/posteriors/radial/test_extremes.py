"""No parameter and no dimension makes anything but finite numbers, in float32."""

import pytest
import torch

import kasuri
from kasuri.posteriors.radial.vmf_sampling import sample


@pytest.mark.parametrize("raw", [-100.0, -5.0, 0.0, 5.0, 10.0, 100.0])
def test_every_dimension_up_to_4000(raw):
    torch.manual_seed(0)
    for d in (2, 3, 4, 7, 8, 50, 783, 4000):
        q = kasuri.Radial()(torch.randn(3, d))
        with torch.no_grad():
            q.rows.directions.log_concentration.fill_(raw)
        prior = kasuri.RadialPrior()
        for value in (q.rsample().square().sum(), q.kl(prior), q.entropy(), q.variance.sum()):
            assert value.isfinite()
            for grad in torch.autograd.grad(value, list(q.parameters()), allow_unused=True):
                assert grad is None or grad.isfinite().all()
        vectors = sample(q.rows.directions.mode(), q.rows.directions.concentration())
        torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(3))


@pytest.mark.parametrize("grouping", ["row", "column", "double"])
@pytest.mark.parametrize("scale", [1e-12, 1e-8, 1e-5])
def test_certain_weights_and_a_row_of_zeros_are_a_start(grouping, scale):
    for seed in range(5):
        torch.manual_seed(seed)
        weight = torch.randn(5, 4)
        weight[2] = 0
        q = kasuri.Radial(grouping=grouping, scale=scale)(weight)
        assert all(bool(p.isfinite().all()) for p in q.parameters())
