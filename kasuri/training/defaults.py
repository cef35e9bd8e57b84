"""The defaults of `kasuri.fit`; docs/quality.md says how each value was chosen."""

import math

import torch
from torch import Tensor

from kasuri.likelihoods import Categorical, Gaussian, Likelihood

EPOCHS = 20
STEPS, STEPS_OF_ADAM = 1500, 4000  # natural ones, others: small data sets need many epochs
LARGE = 256  # batches above this size need fewer, longer steps
# share of the epochs in which the weight of the KL rises from 0 to 1, with natural steps and with others
WARM_UP, WARM_UP_OF_ADAM = 0.1, 0.25
HELD_OUT = 0.1  # share of the training data kept for validation if none is given
CHECKS = 20  # validations per run, at most one per epoch
SAMPLES = 8  # draws per validation
LOOK_SAMPLES = 4  # draws in each of them
ROWS = 2048  # examples per validation of a Bayesian network, SAMPLES times as many of a plain one


def epochs(steps_per_epoch: int, batch_size: int, *, natural: bool) -> int:
    """Enough epochs for so many steps, fewer with large batches, and at least EPOCHS."""
    steps = STEPS if natural else STEPS_OF_ADAM
    return max(EPOCHS, math.ceil(steps / steps_per_epoch / max(1.0, batch_size / LARGE)))


def batch_size(num_data: int) -> int:
    """Larger for large data sets, where fewer, less noisy steps do."""
    return 256 if num_data >= 10_000 else 128


def likelihood_of(targets: Tensor) -> Likelihood:
    """Classes for whole numbers, normal noise of learned size for real ones."""
    if targets.dtype == torch.bool:
        raise ValueError(
            "targets are of type bool: write likelihood=kasuri.Bernoulli(), or convert them to "
            "class numbers with y.long()"
        )
    return Gaussian() if targets.is_floating_point() else Categorical()
