"""Natural-gradient training: gradients divided by the Fisher information of the posterior.

Adam moves the logarithm of a standard deviation by about its learning rate in each step, whatever is at
stake. But how a normal changes with its parameters is known in closed form, and so is the step that takes it
towards its best width at a fixed rate: the ordinary gradient, divided by that information. Every family
states its step next to its definition (`Posterior.natural_step`). Nothing but `.grad` is read.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.network.random import named_posteriors
from kasuri.objectives.elbo import ELBO
from kasuri.posteriors.base import Posterior

SMALLEST_RATE = 0.003  # of natural steps, however far the learning rate has fallen


class Natural(torch.optim.Adam):
    """Natural steps for standard deviations and their factors, Adam for everything else.

    Args:
        elbo: the objective to be minimised; its number of data and its temperature set the length of steps.
        lr: learning rate of Adam, for means, ordinary parameters and what has no natural step.
        rate: of natural steps: the share of the way to the best width, seen from here, that one step goes.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(1), estimator="auto")
        >>> elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.HeNormal(), num_data=100)
        >>> opt = Natural(elbo)
        >>> elbo(torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])).loss.backward()
        >>> opt.step()
    """
