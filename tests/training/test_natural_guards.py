"""Natural steps stay finite where it is hard: wide matrix normals, a transformer, rates and temperatures."""

import pytest
import torch
from torch import nn

import kasuri

LENGTHS = [60, pytest.param(2000, marks=pytest.mark.thorough)]


def trained(elbo: kasuri.ELBO, steps: int, lr: float, batch: object) -> float:
    """The loss at the end; every loss and every parameter must be a number."""
    optimiser = kasuri.Natural(elbo, lr)
    loss = torch.zeros(())
    for step in range(steps):
        optimiser.zero_grad()
        loss = elbo(*batch(step)).loss
        assert loss.isfinite(), step
        loss.backward()
        optimiser.step()
    assert all(parameter.isfinite().all() for parameter in elbo.parameters())
    return float(loss.detach())


@pytest.mark.parametrize("steps", LENGTHS)
@pytest.mark.parametrize(("lr", "temperature"), [(1e-3, 1.0), (1e-2, 1e-2), (1e-3, 1e-4)])
def test_a_wide_matrix_normal(steps: int, lr: float, temperature: float) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(512, 784), torch.randint(10, (512,))
    x[:, :100] = 0  # as pixels at the edge
    net = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 10))
    bnn = kasuri.bayesianize(net, kasuri.MatrixNormal())
    elbo = kasuri.ELBO(
        bnn, kasuri.Categorical(), kasuri.Normal(0.2), num_data=50_000, temperature=temperature
    )

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randint(512, (64,))
        return x[rows], y[rows]

    trained(elbo, steps, lr, batch)


@pytest.mark.parametrize("steps", [20, LENGTHS[1]])
@pytest.mark.parametrize("temperature", [1.0, 1e-2, 1e-4])
def test_a_transformer_from_its_config(steps: int, temperature: float) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    bnn = kasuri.bayesianize(transformers.GPT2LMHeadModel(config), kasuri.KTied(2))
    elbo = kasuri.ELBO(
        bnn,
        kasuri.Categorical(dim=1),
        kasuri.HeNormal(),
        num_data=1000,
        temperature=temperature,
        output=lambda out: out.logits.transpose(1, 2)[..., :-1],
    )
    texts = torch.randint(50, (64, 16)).cumsum(1) % 50

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = texts[torch.randint(64, (8,))]
        return rows, rows[:, 1:]

    trained(elbo, steps, 2e-3, batch)
