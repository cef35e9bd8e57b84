"""Radial posteriors in networks: they tell inputs that do not matter, and can be stacked."""

import torch
from torch import nn

import kasuri
from kasuri.training.many import Stack


def table(seed, inputs=6, count=200):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, inputs, generator=generator)
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] + 0.1 * torch.randn(count, 1, generator=generator)
    return x, y


def network(family):
    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    return kasuri.bayesianize(net, family)


def test_radii_of_useless_inputs_shrink():
    """Four of six inputs are noise: under a half-Cauchy prior their radii fall behind."""
    torch.manual_seed(0)
    family = kasuri.Radial(grouping="double", scale=0.05, mean="he")
    bnn = network(family)
    q = bnn[0].posteriors.weight
    before = q.log_modes("columns").detach()
    elbo = kasuri.ELBO(
        bnn, kasuri.Gaussian(0.3), kasuri.RadialPrior(0.01, 0.01, gap=0.1), num_data=200
    )
    x, y = table(0)
    optimizer = torch.optim.Adam(elbo.parameters(), lr=0.05)
    first = elbo(x, y).loss.item()
    for _ in range(160):
        optimizer.zero_grad()
        elbo(x, y).loss.backward()
        optimizer.step()
    assert elbo(x, y).loss.item() < 0.5 * first
    fall = q.log_modes("columns").detach() - before
    assert fall[:2].min() > fall[2:].max()
    modes = q.log_modes("columns").detach()
    assert modes[:2].min() > modes[2:].max() + 0.5


def test_stacked_networks_have_their_own_divergence():
    torch.manual_seed(0)
    nets = [network(kasuri.Radial(grouping="double")) for _ in range(3)]
    elbos = [kasuri.ELBO(net, kasuri.Gaussian(0.2), kasuri.RadialPrior(0.5), 200) for net in nets]
    apart = torch.stack([elbo.kl() for elbo in elbos]).detach()
    x, y = (torch.stack(parts) for parts in zip(*map(table, range(3)), strict=True))
    torch.testing.assert_close(Stack(elbos)(x, y)[1].detach(), apart)
