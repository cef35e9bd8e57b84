"""Rules of numerical integration."""

import math


def gauss_legendre(count: int) -> tuple[list[float], list[float]]:
    """Nodes and weights of Gauss' rule on [0, 1], exact for polynomials of degree 2 count - 1.

    The nodes are the zeros of Legendre's polynomial, by Newton's method.

    Examples:
        >>> nodes, weights = gauss_legendre(2)
        >>> round(sum(w * x**3 for x, w in zip(nodes, weights)), 12)
        0.25
    """
    nodes, weights = [], []
    for index in range(count):
        x = -math.cos(math.pi * (index + 0.75) / (count + 0.5))
        for _ in range(8):
            value, slope = _legendre(count, x)
            x -= value / slope
        slope = _legendre(count, x)[1]
        nodes.append((1 + x) / 2)
        weights.append(1 / ((1 - x * x) * slope * slope))
    return nodes, weights


def _legendre(degree: int, x: float) -> tuple[float, float]:
    """The polynomial and its derivative at x, inside (-1, 1)."""
    before, value = 1.0, x
    for n in range(2, degree + 1):
        before, value = value, ((2 * n - 1) * x * value - (n - 1) * before) / n
    return value, degree * (x * value - before) / (x * x - 1)
