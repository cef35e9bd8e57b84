"""Eigenvalues of folded triangular factors: the dense ones, and gradients that are right in float32."""

import pytest
import torch
from torch import Tensor

from kasuri.numerics import triangular
from kasuri.numerics.covariances import spectrum


def parameters(size: int, strength: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Folded T, log d and weights, in float64."""
    folded = strength * torch.randn(triangular.folded_shape(size), dtype=torch.float64)
    logs, weights = torch.randn(2, size, dtype=torch.float64)
    return folded.requires_grad_(), logs.requires_grad_(), weights.exp().requires_grad_()


def factor_of(folded: Tensor, logs: Tensor, weights: Tensor | None = None) -> Tensor:
    """diag(w) T diag(d)."""
    factor = triangular.unfold(folded, torch.float64) * logs.double().exp()
    return factor if weights is None else factor * weights.unsqueeze(-1)


def triangular_spectrum(folded: Tensor, logs: Tensor, weights: Tensor | None = None):
    return spectrum(factor_of(folded, logs, weights))


def dense(folded: Tensor, logs: Tensor, weights: Tensor | None) -> Tensor:
    """diag(w) T diag(d)² Tᵀ diag(w)."""
    factor = factor_of(folded, logs, weights)
    return factor @ factor.T


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("weighted", [False, True])
def test_values_vectors_and_gradients_are_those_of_the_dense_matrix(size, weighted):
    folded, logs, weights = parameters(size)
    weights = weights if weighted else None
    values, vectors = triangular_spectrum(folded, logs, weights)
    matrix = dense(folded, logs, weights)
    torch.testing.assert_close(values, torch.linalg.eigvalsh(matrix), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(vectors @ torch.diag(values) @ vectors.T, matrix)
    assert not vectors.requires_grad
    leaves = [one for one in (folded, logs, weights) if one is not None]
    assert torch.autograd.gradcheck(lambda *given: triangular_spectrum(*given)[0].log1p(), leaves)


def test_coinciding_eigenvalues_have_the_gradient_of_the_determinant():
    """At T = I, d = 1 all eigenvalues coincide; Σ log(1 + λ) = log det(I + F Fᵀ) is smooth."""
    folded = torch.zeros(triangular.folded_shape(6), dtype=torch.float64, requires_grad=True)
    logs = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    found = triangular_spectrum(folded, logs, None)[0].log1p().sum()
    expected = torch.logdet(torch.eye(6).double() + dense(folded, logs, None))
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad(found, (folded, logs)),
        torch.autograd.grad(expected, (folded, logs)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("strength", [0.3, 0.6])
def test_gradients_of_float32_parameters_are_as_good_as_float32(strength):
    """Strong correlations, eigenvalues over ten orders of magnitude and more; oracle: Cholesky."""
    torch.manual_seed(0)
    exact = [one.detach().float().double().requires_grad_() for one in parameters(120, strength)]
    size = len(exact[1])
    gram = dense(*exact)
    assert torch.linalg.cond(gram) > 1e10
    oracle = torch.logdet(torch.eye(size).double() + 3 * gram)
    expected = torch.autograd.grad(oracle, exact)
    rounded = [one.detach().float().requires_grad_() for one in exact[:2]]
    weights = exact[2].detach().requires_grad_()
    values, _ = triangular_spectrum(*rounded, weights)
    found = (3 * values).log1p().sum()
    torch.testing.assert_close(found, oracle, rtol=1e-12, atol=0)
    for one, other in zip(torch.autograd.grad(found, (*rounded, weights)), expected, strict=True):
        assert (one.double() - other).norm() < 2e-6 * other.norm()


@pytest.mark.parametrize("trial", range(8))
def test_extreme_parameters_have_finite_gradients(trial):
    """Scales and weights e^±100 beside each other, beyond the range of float32 as they are."""
    torch.manual_seed(trial)
    signs = [torch.randn_like(one).sign() for one in parameters(7)]
    folded, logs = 100 * signs[0].float(), (100 * signs[1].float()).clamp(max=10)
    leaves = [folded, logs, (100 * signs[2]).exp()]
    values, _ = triangular_spectrum(*(leaf.requires_grad_() for leaf in leaves))
    values.log1p().sum().backward()
    assert values.isfinite().all()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)


def test_what_is_below_rounding_is_nothing_and_has_no_gradient():
    factor = torch.tensor([[1.0], [2.0], [2.0]], dtype=torch.float64, requires_grad=True)
    values, vectors = spectrum(factor)
    assert torch.equal(values[:2], torch.zeros(2).double())
    torch.testing.assert_close(values[2].item(), 9.0)
    assert not vectors.requires_grad
    (grad,) = torch.autograd.grad((1e20 * values[:2]).sum() + values[2], factor)
    torch.testing.assert_close(grad, 2 * factor.detach())
