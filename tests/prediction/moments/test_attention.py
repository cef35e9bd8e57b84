"""Attention in predictions without draws: every option reaches the weights of the mean."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kasuri

MASK = torch.tensor([[True, False, False], [True, True, False], [False, True, True]])
OPTIONS = {
    "mask": {"attn_mask": MASK},
    "added": {"attn_mask": torch.randn(3, 3, generator=torch.Generator().manual_seed(0))},
    "causal": {"is_causal": True},
    "mask and scale": {"attn_mask": MASK, "scale": 0.1},
}


class Attending(nn.Module):
    def __init__(self, options: dict[str, object]) -> None:
        super().__init__()
        self.maps, self.options = nn.Linear(4, 12), options

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.maps(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, **self.options)[:, -1]


@pytest.mark.parametrize("name", OPTIONS)
def test_with_little_noise_the_mean_is_the_network_and_the_spread_that_of_draws(name):
    torch.manual_seed(0)
    net, x = Attending(OPTIONS[name]), torch.randn(5, 3, 4)
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=1e-3))
    pred = kasuri.predict_moments(bnn, x)
    with torch.no_grad():
        centre = kasuri.collapse(bnn)(x)
    torch.testing.assert_close(pred.mean, centre, atol=1e-4, rtol=0)
    drawn = kasuri.predict(bnn, x, 1000, seed=0).std  # relative standard error 2.2 %
    torch.testing.assert_close(pred.std, drawn, rtol=0.1, atol=0)
