"""What the processes of test_learning.py run."""

import torch

import kasuri
from kasuri.training.distributed import started_by_torchrun
from tests.likelihoods.test_learning import bayesian, line


def main(folder):
    torch.set_num_threads(1)
    with started_by_torchrun() as group:
        likelihood = kasuri.GammaGaussian(learn="closed form")
        options = {"temperature": 1.0, "epochs": 2, "batch_size": 20, "learning_rate": 0.03}
        kasuri.fit(bayesian(), line(100), likelihood=likelihood, seed=0, **options)
        torch.save(likelihood.state_dict(), folder / f"{group.rank}.pt")
