"""Training through torch.compile: `elbo.parts = torch.compile(elbo.parts)`.

The backend is the one without a C++ compiler: what is tested is that the loop can be compiled.
"""

import copy

import pytest
import torch
from torch import nn

import kasuri
from tests.training.jobs import bayesian, moons


class Backend:
    """Counts the graphs that it is given, and runs them as they are."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, module, inputs):
        from torch._dynamo.backends.debugging import aot_eager

        self.graphs += 1
        return aot_eager(module, inputs)


@pytest.fixture
def backend():
    torch._dynamo.reset()
    yield Backend()
    torch._dynamo.reset()


def go(backend, estimator="local", epochs=3, net=None, **settings):
    warm_up = kasuri.schedules.LinearPerBatch(0.05)
    parts = kasuri.Categorical(), kasuri.HeNormal()
    net = bayesian(estimator) if net is None else net
    elbo = kasuri.ELBO(net, *parts, num_data=40, temperature=0.5, kl_weight=warm_up)
    if backend is not None:
        elbo.parts = torch.compile(elbo.parts, backend=backend)
    data = moons(40), moons(20, seed=1)
    return kasuri.fit(elbo, *data, epochs=epochs, batch_size=10, seed=0, **settings)


@pytest.mark.parametrize("estimator", ["local", "shared"])
def test_losses_are_those_of_the_plain_run(backend, estimator):
    plain, compiled = go(None, estimator), go(backend, estimator)
    assert backend.graphs > 0
    for a, b in zip(plain.history, compiled.history, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4)
        assert b["valid_nll"] == pytest.approx(a["valid_nll"], rel=1e-4)


def test_neither_steps_nor_validations_compile_again(backend):
    go(backend, epochs=1)
    made = backend.graphs
    torch._dynamo.reset()
    go(backend, epochs=6)
    assert backend.graphs == 2 * made  # as many for six epochs as for one


@pytest.mark.slow  # a C++ compiler is at work
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # inductor's own
def test_with_the_default_backend():
    torch._dynamo.reset()
    linear = nn.Linear(2, 2, bias=False)  # few kernels, and plain ones, are soon compiled
    net = kasuri.bayesianize(linear, kasuri.MeanField(), estimator="local")
    with torch._inductor.config.patch({"cpp.vec_isa_ok": False}):
        fits = [go(how, epochs=2, net=copy.deepcopy(net)) for how in (None, "inductor")]
    losses = [[row["loss"] for row in fitted.history] for fitted in fits]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)  # it has a generator of its own
    torch._dynamo.reset()
