"""Predictions with uncertainty, in bounded memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.checks import at_least_one
from kasuri.inputs import batches, run, split
from kasuri.likelihoods import Likelihood
from kasuri.likelihoods.predictions import Draws, Prediction, RealPrediction
from kasuri.network.calls import all_draws
from kasuri.network.contexts import drawing_from, evaluating, using
from kasuri.network.estimators import Estimator, local, resolve, shared
from kasuri.network.random import named_posteriors, require_posteriors
from kasuri.numerics.safe import safe_sqrt
from kasuri.numerics.sampling import normal_noise
from kasuri.objectives.elbo import Objective
from kasuri.objectives.trained import Trained, objective_of
from kasuri.posteriors.base import Elementwise, Op, Posterior, bias_moments
from kasuri.streams import fresh, mix, seeded

Output = Callable[[Any], Tensor] | None


def model_of(
    given: nn.Module | Trained, likelihood: Likelihood | None = None, output: Output = None
) -> tuple[nn.Module, Likelihood | None, Output]:
    """(network, likelihood, output function); arguments win over what an objective has."""
    given = objective_of(given)
    if isinstance(given, Objective):
        return given.net, likelihood or given.likelihood, output or given.output
    return given, likelihood, output


def predict(
    bnn: nn.Module | Trained,
    x: Any,
    samples: int = 100,
    *,
    likelihood: Likelihood | None = None,
    estimator: Estimator | str = shared,
    chunk: int | None = None,
    seed: int | None = None,
    keep_draws: bool = True,
    output: Output = None,
) -> Prediction:
    """Draw functions from the posterior, run them on x and summarise.

    Each draw is one function: one set of weights for all inputs, time steps and batches. The
    network runs in evaluation mode (dropout off, batch-norm statistics fixed) and is left as it was.

    Args:
        bnn: a network from `bayesianize`; or an objective or what `kasuri.fit` gave, whose network,
            likelihood and `output` are used. An ordinary network is one draw and needs a likelihood.
        x: a tensor (batch first), a tuple of inputs, a mapping of named inputs, or a loader: any
            other iterable of batches, of which the first element is the input if they are tuples.
        samples: number of draws S.
        likelihood: what the outputs mean. Without it they are taken as values of a function: mean, std,
            interval and epistemic still say what the draws say.
        estimator: "shared" draws functions. "local" draws outputs: the same law for each example of a
            network of linear layers, cheaper, but no coherent function; seeds are then not reusable.
        chunk: at most so many examples run at once.
        seed: makes the result reproducible; otherwise torch's global generator decides.
        keep_draws: keep all S outputs (needed for intervals, `draws` and the scores of regressions); without,
            memory does not depend on S.
        output: takes the tensor out of what the network returns.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(rank=1, scale=0.1))
        >>> pred = kasuri.predict(bnn, torch.randn(5, 3), samples=10, likelihood=kasuri.Categorical())
        >>> pred.mean.shape, pred.epistemic.shape
        (torch.Size([5, 2]), torch.Size([5]))
        >>> pred.score(torch.zeros(5).long())["nll"].shape
        torch.Size([5])
    """
    at_least_one(samples=samples, chunk=chunk)
    net, likelihood, output = model_of(bnn, likelihood, output)
    if likelihood is None:
        require_posteriors(net)
    seeds: list[int] = []
    if next(named_posteriors(net), None) is not None:
        base = fresh() if seed is None else seed
        seeds = [mix(base, draw) for draw in range(samples)]
    parts: list[Draws] = []
    estimator = resolve(estimator)
    with torch.no_grad(), evaluating(net) as network:
        for batch in batches(x):
            pieces = split(batch, chunk)
            draws = [Draws(keep_draws, seeds) for _ in pieces]
            with _drawing(network, estimator, pieces) as turn_to:
                for number in seeds or [0]:
                    turn_to(number)
                    for piece, part in zip(pieces, draws, strict=True):
                        part.add(run(network, piece, output).unsqueeze(0), likelihood)
            parts += draws
    if not parts:
        raise ValueError("predict was given a loader without batches")
    return summarise(Draws.join(parts), likelihood)


def summarise(draws: Draws, likelihood: Likelihood | None) -> Prediction:
    """The prediction made of draws; without a likelihood, of values of a function."""
    return RealPrediction(draws) if likelihood is None else likelihood.summarise(draws)


@contextmanager
def _drawing(
    net: nn.Module, estimator: Estimator, inputs: Sequence[Any]
) -> Iterator[Callable[[int], None]]:
    """Yields a function of a seed that switches to the draw, or the stream of noise, of that seed."""
    posteriors = [posterior for _, posterior in named_posteriors(net)]
    if estimator is shared:
        weights: dict[int, Tensor] = {}
        with drawing_from(net, weights):
            yield lambda seed: weights.update(all_draws(posteriors, seed))
    else:
        # one input at a time is remembered, so that memory stays that of a chunk
        remembered = _local_at(inputs[0]) if estimator is local and len(inputs) == 1 else estimator
        with using(net, estimator), using(net, remembered), ExitStack() as noise:

            def turn_to(seed: int) -> None:
                noise.close()
                noise.enter_context(seeded(seed))

            yield turn_to


def _local_at(x: Any) -> Estimator:
    """`local`, for many draws at one input: layers that read it find the moments of their outputs once."""
    known: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def draw(posterior: Posterior, op: Op, inputs: Tensor) -> Tensor:
        if inputs is not x or not isinstance(posterior, Elementwise):
            return local(posterior, op, inputs)
        key = id(posterior), id(op.bias)
        if key not in known:
            centre, spread = bias_moments(op)
            mean = op.shifted(x, posterior.mean, centre)
            variance = op(x.square(), posterior.variance)
            if spread is not None:
                variance = variance + op.along_features(spread, mean)
            known[key] = mean, safe_sqrt(variance)
        mean, deviation = known[key]
        return torch.addcmul(mean, deviation, normal_noise(mean, examples=op.counts_examples(mean)))

    return draw
