"""Zeros against their closed forms."""

import torch

from kasuri.numerics.roots import falling_root


def test_zeros_of_bent_functions_are_found():
    goal = torch.linspace(-20, 20, 41).double()
    low, high = torch.full_like(goal, -30.0), torch.full_like(goal, 30.0)
    # straight on both sides with slopes -1 and -3, as logarithms of moments are
    bent = falling_root(lambda x: goal - x - 2 * torch.nn.functional.softplus(x), low, high, 12)
    assert bool((goal - bent - 2 * torch.nn.functional.softplus(bent)).abs().max() < 1e-8)


def test_without_a_zero_inside_the_nearer_end_is_it():
    low, high = torch.zeros(3), torch.ones(3)
    found = falling_root(lambda x: torch.tensor([-1.0, 5.0, 0.25]) - x, low, high, 5)
    torch.testing.assert_close(found, torch.tensor([0.0, 1.0, 0.25]))
