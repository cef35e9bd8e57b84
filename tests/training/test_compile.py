"""Training through torch.compile: `elbo.parts = torch.compile(elbo.parts)`.

The backend is the one without a C++ compiler: what is tested is that the loop can be compiled.
"""

import pytest
import torch

import kasuri
from tests.training.jobs import Stop, bayesian, moons


@pytest.mark.parametrize("estimator", ["local", "shared"])
def test_losses_are_those_of_the_plain_run_and_only_the_first_epoch_compiles(estimator):
    torch._dynamo.reset()
    made, after_one = [], []

    def backend(module, inputs):
        made.append(module)
        return module.forward

    def go(compiled):
        warm_up = kasuri.schedules.LinearPerBatch(0.05)
        parts = kasuri.Categorical(), kasuri.HeNormal()
        net = bayesian(estimator)
        elbo = kasuri.ELBO(net, *parts, num_data=40, temperature=0.5, kl_weight=warm_up)
        if compiled:
            elbo.parts = torch.compile(elbo.parts, backend=backend)
        count = Stop(act=lambda: after_one.append(len(made)), epoch=1)
        settings = {"epochs": 3, "batch_size": 10, "seed": 0, "callbacks": [count]}
        return kasuri.fit(elbo, moons(40), moons(20, seed=1), **settings)

    plain, compiled = go(False), go(True)
    torch._dynamo.reset()
    assert 0 == after_one[0] < after_one[1] == len(made)
    for a, b in zip(plain.history, compiled.history, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4)
        assert b["valid_nll"] == pytest.approx(a["valid_nll"], rel=1e-4)
