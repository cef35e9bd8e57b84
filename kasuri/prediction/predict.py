"""Predictions with uncertainty, in bounded memory."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.inputs import batches, run, split
from kasuri.likelihoods import Likelihood
from kasuri.likelihoods.predictions import Draws, Prediction, RealPrediction
from kasuri.network.calls import Given, all_draws
from kasuri.network.contexts import drawing_from, evaluating, using
from kasuri.network.estimators import Estimator, resolve, shared
from kasuri.network.random import require_posteriors
from kasuri.numerics.local_linear import repeating
from kasuri.objectives.elbo import ELBO
from kasuri.objectives.trained import Trained, objective_of
from kasuri.streams import fresh, mix, seeded


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
    output: Callable[[Any], Tensor] | None = None,
) -> Prediction:
    """Draw functions from the posterior, run them on x and summarise.

    Each draw is one function: one set of weights for all inputs, time steps and batches. The
    network runs in evaluation mode (dropout off, batch-norm statistics fixed) and is left as it was.

    Args:
        bnn: a network from `bayesianize`; or an ELBO or what `kasuri.fit` gave, whose network, likelihood
            and `output` are used.
        x: a tensor (batch first), a tuple of inputs, a mapping of named inputs, or a loader: any
            other iterable of batches, of which the first element is the input if they are tuples.
        samples: number of draws S.
        likelihood: what the outputs mean. Without it they are taken as values of a function: mean, std,
            interval and epistemic still say what the draws say.
        estimator: "shared" draws functions. "local" draws outputs: the same law for each example of a
            network of linear layers, cheaper, but no coherent function; seeds are then not reusable.
        chunk: at most so many examples run at once.
        seed: makes the result reproducible; otherwise torch's global generator decides.
        keep_draws: keep all S outputs (needed for intervals and the entropy of regressions); without,
            memory does not depend on S.
        output: takes the tensor out of what the network returns.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(rank=1, scale=0.1))
        >>> pred = kasuri.predict(bnn, torch.randn(5, 3), samples=10, likelihood=kasuri.Categorical())
        >>> pred.mean.shape, pred.epistemic.shape
        (torch.Size([5, 2]), torch.Size([5]))
    """
    bnn = objective_of(bnn)
    if isinstance(bnn, ELBO):
        likelihood = likelihood or bnn.likelihood
        output = output or bnn.output
        bnn = bnn.bnn
    if samples < 1 or (chunk is not None and chunk < 1):
        raise ValueError(f"predict(samples={samples}, chunk={chunk}): both are at least 1")
    require_posteriors(bnn)
    estimator = resolve(estimator)
    base = fresh() if seed is None else seed
    seeds = [mix(base, draw) for draw in range(samples)]
    parts: list[Draws] = []
    with torch.no_grad(), evaluating(bnn) as net, _drawing(net, estimator) as turn_to:
        for batch in batches(x):
            pieces = split(batch, chunk)
            draws = [Draws([] if keep_draws else None) for _ in pieces]
            with repeating(piece for piece in pieces if isinstance(piece, Tensor)):
                for one in seeds:
                    turn_to(one)
                    for piece, draw in zip(pieces, draws, strict=True):
                        draw.add(*_moments(run(net, piece, output), likelihood))
            parts += draws
    if not parts:
        raise ValueError("predict was given a loader without batches")
    joined = Draws.join(parts)
    return (
        RealPrediction(joined, seeds) if likelihood is None else likelihood.summarise(joined, seeds)
    )


def _moments(
    f: Tensor, likelihood: Likelihood | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return (f, None, None) if likelihood is None else likelihood.moments(f)


@contextmanager
def _drawing(bnn: nn.Module, estimator: Estimator) -> Iterator[Callable[[int], None]]:
    """Yields what turns to the function, or the stream of noise, that belongs to a seed."""
    if estimator is shared:
        posteriors = require_posteriors(bnn).values()
        weights = Given({})
        with drawing_from(bnn, weights):
            yield lambda seed: weights.turn_to(all_draws(posteriors, seed))
    else:
        with using(bnn, estimator), ExitStack() as noise:

            def turn_to(seed: int) -> None:
                noise.close()
                noise.enter_context(seeded(seed))

            yield turn_to
