"""Gauss' rules are exact for polynomials of the degree they should be, and no further."""

import pytest
import torch

from kasuri.numerics.quadrature import gauss_hermite, gauss_legendre


@pytest.mark.parametrize("count", [1, 2, 7, 24])
def test_legendre_is_exact_for_polynomials(count):
    nodes, weights = gauss_legendre(count)
    for degree in (0, 1, 2 * count - 1):
        total = sum(w * x**degree for x, w in zip(nodes, weights, strict=True))
        assert total == pytest.approx(1 / (degree + 1), rel=1e-13)
    beyond = sum(w * x ** (2 * count) for x, w in zip(nodes, weights, strict=True))
    assert count > 7 or beyond != pytest.approx(1 / (2 * count + 1), rel=1e-13)


@pytest.mark.parametrize("count", [1, 3, 7, 12])
def test_hermite_has_the_moments_of_a_normal(count):
    nodes, weights = gauss_hermite(count)
    moment = 1.0
    for degree in range(0, 2 * count, 2):
        assert (weights * nodes**degree).sum().item() == pytest.approx(moment, rel=1e-11)
        moment *= degree + 1
    assert torch.equal(nodes, -nodes.flip(0))
