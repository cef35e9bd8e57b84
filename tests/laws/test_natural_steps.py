"""Natural steps against the Fisher information, computed densely from mean and covariance."""

import pytest
import torch
from torch import Tensor

import kasuri
from kasuri.posteriors.base import LARGEST_MOVE, Posterior
from kasuri.testing.posterior_laws import randomised

SMALL = 1e-3  # length of gradients at which no bound acts


def moments(posterior: Posterior, parameters: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and covariance of all weights as functions of the parameters."""
    count = posterior.numel()

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = posterior

        def forward(self) -> tuple[Tensor, Tensor]:
            eye = torch.eye(count, dtype=torch.float64).reshape(count, *posterior.shape)
            factor = self.q.pull(eye)
            return self.q.mean.flatten(), factor @ factor.mT

    both: tuple[Tensor, Tensor] = torch.func.functional_call(
        Both(), {f"q.{name}": value for name, value in parameters.items()}, ()
    )
    return both


def information(posterior: Posterior, names: list[str]) -> Tensor:
    """Fisher information about some of the parameters, flattened together."""
    values = {name: p.detach() for name, p in posterior.named_parameters()}
    sizes = [values[name].numel() for name in names]

    def of(flat: Tensor) -> tuple[Tensor, Tensor]:
        parts = dict(zip(names, flat.split(sizes), strict=True))
        return moments(
            posterior, values | {n: v.reshape(values[n].shape) for n, v in parts.items()}
        )

    flat = torch.cat([values[name].flatten() for name in names])
    mean, covariance = torch.autograd.functional.jacobian(of, flat)
    precision = torch.linalg.inv(of(flat)[1])
    moved = torch.einsum("ij,jka->ika", precision, covariance)
    return mean.mT @ precision @ mean + 0.5 * torch.einsum("ija,jib->ab", moved, moved)


def step_of(posterior: Posterior) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    gradients = {n: SMALL * torch.randn_like(p) for n, p in posterior.named_parameters()}
    with torch.no_grad():
        return gradients, posterior.natural_step(gradients)


EXACT = {  # groups of parameters whose steps are those of their block of the information
    "mean-field": (kasuri.MeanField(), [["log_scale"]]),
    "mean-field, bounded": (kasuri.MeanField(max_scale=0.5), [["log_scale"]]),
    "1-tied": (kasuri.KTied(1), [["log_rows"], ["log_columns"]]),
    "matrix normal": (
        kasuri.MatrixNormal(),
        [["rows.log_scale", "rows.lower"], ["columns.log_scale", "columns.lower"]],
    ),
    "diagonal sides": (
        kasuri.MatrixNormal(rows="diagonal", columns="diagonal"),
        [["rows.log_scale"], ["columns.log_scale"]],
    ),
    "full normal": (kasuri.FullNormal(), [["side.log_scale", "side.lower"]]),
}


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)], ids=["one block", "two blocks"])
@pytest.mark.parametrize("name", EXACT)
def test_steps_are_gradients_divided_by_the_information(name: str, shape: tuple[int, ...]) -> None:
    family, groups = EXACT[name]
    posterior = randomised(family, shape)
    gradients, moves = step_of(posterior)
    assert moves.keys() == gradients.keys() - {"loc"}
    for names in groups:
        gradient = torch.cat([gradients[n].flatten() for n in names])
        move = torch.cat([moves[n].flatten() for n in names])
        expected = -torch.linalg.solve(information(posterior, names), gradient)
        torch.testing.assert_close(move, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("family", [kasuri.KTied(3), kasuri.KTied(2, max_scale=0.5)], ids=repr)
def test_steps_of_tied_factors_divide_by_row_sums_of_the_information(family: kasuri.Family) -> None:
    posterior = randomised(family, (3, 4))
    gradients, moves = step_of(posterior)
    for name in ("log_rows", "log_columns"):
        block = information(posterior, [name])
        divisor = -gradients[name] / moves[name]
        if posterior.max_scale is None:
            torch.testing.assert_close(divisor.flatten(), block.sum(-1))
        bound = torch.diag(divisor.flatten()) - block
        assert torch.linalg.eigvalsh(bound).min() > -1e-9 * divisor.max()


def test_steps_of_sides_of_low_rank_divide_by_the_diagonal_of_the_information() -> None:
    posterior = randomised(kasuri.MatrixNormal(rows=1, columns="diagonal"), (4, 3))
    gradients, moves = step_of(posterior)
    diagonal = information(posterior, ["rows.log_scale"]).diagonal()
    torch.testing.assert_close(moves["rows.log_scale"], -gradients["rows.log_scale"] / diagonal)
    assert "rows.loadings" not in moves


MORE = {  # of families with other noise beside: parts of their parameters
    kasuri.MatrixNormalDiagonal(): [
        ["rows.log_scale", "rows.lower"],
        ["columns.log_scale", "columns.lower"],
        ["log_rows"],
        ["log_columns"],
    ],
    kasuri.MatrixNormalDiagonal(diagonal="free"): [
        ["columns.log_scale", "columns.lower"],
        ["log_extra"],
    ],
    kasuri.ScaledMatrixNormal(): [["rows.log_scale", "rows.lower"]],
}


@pytest.mark.parametrize("family", MORE, ids=repr)
def test_steps_beside_other_noise_are_never_too_long(family: kasuri.Family) -> None:
    posterior = randomised(family, (3, 4))
    for names in MORE[family]:
        known = information(posterior, names)
        for _ in range(20):
            gradients, moves = step_of(posterior)
            gradient = torch.cat([gradients[n].flatten() for n in names])
            move = torch.cat([moves[n].flatten() for n in names])
            taken, natural = -gradient @ move, gradient @ torch.linalg.solve(known, gradient)
            assert 0 < taken <= natural * (1 + 1e-9)


def test_steps_of_scales_divide_by_a_bound_of_the_diagonal() -> None:
    posterior = randomised(kasuri.ScaledMatrixNormal(), (3, 4))
    gradients, moves = step_of(posterior)
    divisor = -gradients["log_scale"] / moves["log_scale"]
    diagonal = information(posterior, ["log_scale"]).diagonal().reshape(3, 4)
    assert (diagonal <= divisor).all()
    assert (diagonal >= 0.5 * divisor).any()


@pytest.mark.parametrize("name", EXACT)
def test_large_steps_are_bounded(name: str) -> None:
    posterior = randomised(EXACT[name][0], (3, 4))
    gradients = {n: 1e6 * torch.randn_like(p) for n, p in posterior.named_parameters()}
    before = covariance(posterior)
    with torch.no_grad():
        moves = posterior.natural_step(gradients)
        for key, parameter in posterior.named_parameters():
            if key != "loc":
                parameter += moves[key]
    # as seen from the old covariance, no direction is wider or narrower than the bounds allow
    seen = torch.linalg.solve(before, covariance(posterior))
    logs = torch.linalg.eigvals(seen).real.log() / 2
    assert logs.abs().max() < (1.0 if "normal" in name else 2.0001 * LARGEST_MOVE)


def covariance(posterior: Posterior) -> Tensor:
    with torch.no_grad():
        return moments(posterior, dict(posterior.named_parameters()))[1]
