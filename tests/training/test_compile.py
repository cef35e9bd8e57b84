"""`compile=True`: the same training through torch.compile, and no trace of it afterwards.

The backend is the one without a C++ compiler: what is tested is what kasuri does with torch.compile.
"""

import functools

import pytest
import torch
from torch import nn

import kasuri
from tests.training import jobs
from tests.training.jobs import Boom, Stop, bayesian, moons, network


class Backend:
    """Counts the graphs that it is given, and runs them as they are."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, module, inputs):
        from torch._dynamo.backends.debugging import aot_eager

        self.graphs += 1
        return aot_eager(module, inputs)


@pytest.fixture
def backend(monkeypatch):
    torch._dynamo.reset()
    counting = Backend()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counting))
    yield counting
    torch._dynamo.reset()


def go(net, compile, data=None, epochs=3, **settings):
    return kasuri.fit(
        net, data or moons(40), epochs=epochs, batch_size=10, seed=0, compile=compile, **settings
    )


@pytest.mark.parametrize("estimator", ["local", "shared"])
def test_losses_are_those_of_the_plain_run(backend, estimator):
    fits = [go(bayesian(estimator), compile, temperature=0.5) for compile in (False, True)]
    assert backend.graphs > 0
    for a, b in zip(fits[0].history, fits[1].history, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4)
    assert fits[1].net._compiled_call_impl is None
    assert "parts" not in vars(fits[1].objective)
    made = backend.graphs
    fits[1].objective(*moons(40), step=0)
    assert backend.graphs == made


def test_a_plain_network(backend):
    fits = [go(network(), compile, valid=moons(20, seed=1)) for compile in (False, True)]
    assert backend.graphs > 0
    assert fits[1].history[-1]["valid_nll"] == pytest.approx(
        fits[0].history[-1]["valid_nll"], rel=1e-4
    )
    assert fits[1].net._compiled_call_impl is None


def test_validation_does_not_compile_again_and_again(backend):
    settings = {"valid": moons(20, seed=1), "samples": 4}
    few = go(bayesian(), True, epochs=1, **settings)
    made = backend.graphs
    torch._dynamo.reset()
    many = go(bayesian(), True, epochs=6, **settings)
    assert len(few.history) < len(many.history)
    assert backend.graphs == 2 * made  # as many for six validations as for one
    assert made <= 4


def test_no_trace_after_a_failure(backend, tmp_path):
    net = bayesian()
    with pytest.raises(Boom):
        go(net, True, temperature=0.5, callbacks=[Stop(2, jobs.raise_boom)])
    assert net._compiled_call_impl is None


def test_a_network_that_was_compiled_before_stays_so(backend):
    net = network()
    net.compile()
    mine = net._compiled_call_impl
    for compile in (False, True):
        go(net, compile, epochs=1)
        assert net._compiled_call_impl is mine


def test_compiled_runs_are_resumed(backend, tmp_path):
    def run(folder, step=None, resume=False):
        callbacks = [Stop(step, jobs.interrupt)]
        return go(
            bayesian(), True, temperature=0.5, folder=folder, resume=resume, callbacks=callbacks
        )

    whole = run(tmp_path / "whole")
    with pytest.raises(kasuri.Interrupted):
        run(tmp_path / "two", step=5)
    assert jobs.equal(run(tmp_path / "two", resume=True).net, whole.net)


@pytest.mark.slow  # a C++ compiler is at work
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # inductor's own
def test_with_the_default_backend():
    torch._dynamo.reset()
    nets = [
        kasuri.bayesianize(nn.Linear(2, 2), kasuri.MeanField(), estimator="local") for _ in range(2)
    ]
    nets[1].load_state_dict(nets[0].state_dict())
    fits = [go(nets[i], bool(i), epochs=2, temperature=0.5) for i in range(2)]
    losses = [[row["loss"] for row in one.history] for one in fits]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)  # it has a generator of its own
    assert fits[1].net._compiled_call_impl is None
    torch._dynamo.reset()
