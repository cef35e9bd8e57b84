"""Objectives: the evidence lower bound of a converted network, and plain maximum likelihood."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from kasuri.inputs import run
from kasuri.likelihoods import Likelihood
from kasuri.network.contexts import drawing
from kasuri.network.random import named_posteriors, require_posteriors
from kasuri.network.saving import FileError, read
from kasuri.objectives import schedules
from kasuri.objectives import temperature as tempering
from kasuri.objectives.temperature import Tempering
from kasuri.posteriors.base import Posterior
from kasuri.priors.base import Prior, assign
from kasuri.storage import build, describe


class Terms(NamedTuple):
    """loss = nll + temperature · kl_weight · kl / num_data.

    The KL of a likelihood's own posterior (`GammaGaussian`) is a part of its nll, divided by num_data.
    """

    loss: Tensor
    nll: Tensor
    kl: Tensor


class Objective(nn.Module, ABC):
    """What training minimises: a function of a batch, owner of likelihood and prior."""

    likelihood: Likelihood
    output: Callable[[Any], Tensor] | None
    num_data: int | None
    has_targets: ClassVar[bool] = True

    @property
    @abstractmethod
    def net(self) -> nn.Module:
        """The network being trained."""

    @abstractmethod
    def parts(self, x: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        """(nll per example, kl in full): all that is expensive, and nothing that changes with time."""

    def forward(self, x: Any, y: Tensor, step: int | None = None) -> Terms:
        """(loss, nll, kl): nll per example, kl in full, loss as documented.

        Args:
            x: input of the network; a tuple for several, a mapping for named ones.
            y: targets, examples along the first dimension.
            step: number of the training step; needed if anything is on a schedule.
        """
        factor = self.kl_factor(step)
        nll, kl = self.parts(x, y)
        return Terms(nll + factor * kl, nll, kl)

    def scheduled(self) -> dict[str, schedules.Schedule]:
        """The weights of the KL, which may change with the step, by name."""
        return {}

    def weight_at(self, step: int | None) -> float:
        """The product of all weights of the KL at a training step."""
        weight = 1.0
        for name, schedule in self.scheduled().items():
            if step is None and not isinstance(schedule, schedules.Constant):
                raise ValueError(
                    f"{name} is a schedule, so the step matters: call elbo(x, y, step=i) with "
                    "i = 0, 1, 2, ... counting optimiser steps"
                )
            weight *= schedule(step or 0)
        return weight

    def kl_factor(self, step: int | None) -> float:
        """What the KL that `parts` gives is multiplied by in the loss."""
        return self.weight_at(step)

    def is_warming_up(self, step: int) -> bool:
        """Whether it is too early at a step to stop for want of improvement."""
        return False

    def held_out(self, x: Any, y: Tensor, samples: int) -> Tensor | None:
        """Losses (batch,) that validation compares; None for the predictive NLL of targets."""
        return None

    def update(self, x: Any, y: Tensor) -> bool:
        """Take a batch into what the likelihood learns in closed form; False if there is no such thing.

        To be called after every step of the optimiser, as `kasuri.fit` does. One forward pass, with the
        noise of the present mode; without gradients.
        """
        if not self.likelihood.updates:
            return False
        assert self.num_data is not None
        with torch.no_grad():
            self.likelihood.update(self._outputs(x), y, self.num_data)
        return True

    def _outputs(self, x: Any) -> Tensor:
        return run(self.net, x, self.output)

    def _nll_of(self, f: Tensor, y: Tensor) -> Tensor:
        """Minus the expected log-likelihood per example, with its share of the likelihood's own KL."""
        nll = -self.likelihood.expected_log_prob(f, y).mean()
        kl = self.likelihood.kl()
        if kl is None:
            return nll
        assert self.num_data is not None
        return nll + (kl / self.num_data).to(nll.dtype)


class Governing(nn.Module, ABC):
    """An objective that owns priors of random weights; `govern` belongs into its constructor."""

    priors: nn.ModuleList
    governed: tuple[Any, ...]
    patterns: tuple[str, ...] | None

    def govern(
        self, prior: Prior | Mapping[str, Prior], posteriors: Mapping[str, Posterior]
    ) -> None:
        """Take over a prior, or priors by name patterns, and prepare them for the posteriors."""
        groups = assign(prior, dict(posteriors))
        self.priors = nn.ModuleList(owned for owned, _ in groups)
        self.governed = tuple(names for _, names in groups)
        self.patterns = tuple(prior) if isinstance(prior, Mapping) else None
        self._posteriors = [[posteriors[name] for name in names] for names in self.governed]
        for (owned, _), governed in zip(groups, self._posteriors, strict=True):
            if owned.of_weights:
                for posterior in governed:
                    posterior.require_density()
            owned.prepare(governed)

    def groups(self) -> list[tuple[Prior, tuple[str, ...]]]:
        """Every prior with the names of the posteriors it is about."""
        priors: Any = self.priors
        return list(zip(priors, self.governed, strict=True))

    def weight_kl(self) -> Tensor:
        """KL(q ‖ p) in nats over all random weights, in the parameters' precision."""
        device = next(self.parameters()).device.type
        with torch.autocast(device, enabled=False):
            groups: Any = zip(self.priors, self._posteriors, strict=True)
            terms = [prior.kl(*posteriors) for prior, posteriors in groups]
            return terms[0] if len(terms) == 1 else torch.stack(terms).sum()


class ELBO(Governing, Objective):
    """Minus the evidence lower bound per example, with its two parts.

    The value does not depend on the batch size, and the KL is counted once per call however many
    draws are made. With num_data = N, -N · loss is an unbiased estimate of the (tempered) ELBO.

    In training mode each layer's estimator draws; in evaluation mode whole weights are drawn,
    so that a validation loss is that of functions of the posterior.

    Args:
        bnn: a network from `bayesianize`.
        likelihood: kasuri.Categorical(), kasuri.Bernoulli(), kasuri.Gaussian(), kasuri.GammaGaussian(),
            kasuri.HeteroscedasticGaussian().
        prior: one prior for all weights, or a mapping of name patterns to priors, first match wins.
        num_data: number of training examples (not of batches).
        temperature: weight η of the KL that stays: 1 for Bayes, less for a cold posterior. A float; a
            schedule; `kasuri.Balanced(tau)` for τ · data / weights; or "auto", which starts at the
            ratio and follows validation data in `kasuri.fit(elbo, train, valid)` (elsewhere it stays there).
        samples: draws per call, averaged.
        kl_weight: weight of the KL while training warms up. A float or a schedule.
        output: takes the tensor out of what the network returns, e.g. `lambda out: out.logits`.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(1))
        >>> elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=100)
        >>> loss, nll, kl = elbo(torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
        >>> torch.allclose(loss, nll + kl / 100)
        True
    """

    num_data: int

    def __init__(
        self,
        bnn: nn.Module,
        likelihood: Likelihood,
        prior: Prior | Mapping[str, Prior],
        num_data: int | None = None,
        temperature: tempering.Temperature = 1.0,
        samples: int = 1,
        kl_weight: float | schedules.Schedule = 1.0,
        output: Callable[[Any], Tensor] | None = None,
    ) -> None:
        super().__init__()
        if num_data is None or isinstance(num_data, bool) or num_data < 1:
            raise ValueError(
                f"ELBO: num_data must be the number of training examples, got {num_data}; it sets the "
                "weight of the KL and cannot be guessed: write num_data=len(train_set)"
            )
        if samples < 1:
            raise ValueError(f"ELBO: samples must be at least 1, got {samples}")
        _check(likelihood)
        posteriors = require_posteriors(bnn)
        self.bnn = bnn
        self.likelihood = likelihood
        self.govern(prior, posteriors)
        self.num_data = int(num_data)
        self.samples = samples
        self.temperature = tempering.resolve(
            temperature, bnn, self.num_data, likelihood.usual_ratio, likelihood.rise
        )
        self.kl_weight = schedules.resolve(kl_weight)
        self.output = output

    @property
    def net(self) -> nn.Module:
        return self.bnn

    def kl_factor(self, step: int | None) -> float:
        return self.weight_at(step) / self.num_data

    def parts(self, x: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        nll = self._nll_of(self._outputs(x), y)
        for _ in range(self.samples - 1):
            nll = nll + self._nll_of(self._outputs(x), y)
        return nll / self.samples if self.samples > 1 else nll, self.kl()

    def _outputs(self, x: Any) -> Tensor:
        if self.training:
            return run(self.bnn, x, self.output)
        with drawing(self.bnn):
            return run(self.bnn, x, self.output)

    def kl(self) -> Tensor:
        """KL(q ‖ p) in nats over all random weights, unweighted, in the parameters' precision."""
        return self.weight_kl()

    def scheduled(self) -> dict[str, schedules.Schedule]:
        return {"temperature": self.temperature, "kl_weight": self.kl_weight}

    def description(self) -> dict[str, Any]:
        """Everything but tensors and code, for `kasuri.save`."""
        temperature = self.temperature
        if isinstance(temperature, Tempering):  # it follows validation: stored at its present value
            temperature = schedules.Constant(temperature(0))
        return {
            "priors": [describe(prior) for prior in self.priors],
            "patterns": self.patterns,
            "likelihood": describe(self.likelihood),
            "num_data": self.num_data,
            "samples": self.samples,
            "temperature": describe(temperature),
            "kl_weight": describe(self.kl_weight),
        }


def load_objective(path: str | os.PathLike[str], bnn: nn.Module) -> ELBO:
    """The objective stored with a network, for a network from `load`.

    An `output=` function is code and not stored: set `elbo.output` again if you had one.
    """
    description, tensors = read(Path(path))
    stored = description.get("objective")
    if stored is None:
        raise FileError(f"{path} has no objective: it was saved without objective=elbo")
    priors = [build(prior) for prior in stored["priors"]]
    patterns, rule = stored["patterns"], stored.get("balance") or {"options": {}}
    if rule["options"].get("average") or rule["options"].get("over") == "layers":
        raise FileError(
            f"{path} has a temperature {rule['options']}: only version 0.2 had temperatures for each layer "
            "and averaged outputs. kasuri.load reads the network; write a new kasuri.ELBO for it"
        )
    elbo = ELBO(
        bnn,
        build(stored["likelihood"]),
        priors[0] if patterns is None else dict(zip(patterns, priors, strict=True)),
        num_data=stored["num_data"],
        temperature=build(stored["temperature"]),
        samples=stored["samples"],
        kl_weight=build(stored["kl_weight"]),
    )
    prefix = "objective:"
    state = {key.removeprefix(prefix): v for key, v in tensors.items() if key.startswith(prefix)}
    elbo.load_state_dict(state | {f"bnn.{key}": v for key, v in bnn.state_dict().items()})
    return elbo


class MaximumLikelihood(Objective):
    """The mean negative log-likelihood of an ordinary network: the baseline, in the same words.

    Args:
        net: any network; a converted one is refused, since its posteriors would collapse.
        likelihood: as for ELBO.
        output: as for ELBO.
        num_data: number of training examples; needed by a likelihood with a posterior of its own.

    Examples:
        >>> import kasuri
        >>> loss, nll, kl = kasuri.MaximumLikelihood(nn.Linear(3, 2), kasuri.Categorical())(
        ...     torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
        ... )
        >>> bool(loss == nll), float(kl)
        (True, 0.0)
    """

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood,
        output: Callable[[Any], Tensor] | None = None,
        num_data: int | None = None,
    ) -> None:
        super().__init__()
        _check(likelihood)
        if next(named_posteriors(net), None) is not None:
            raise ValueError(
                "MaximumLikelihood of a converted network would shrink every posterior to a point: "
                "write kasuri.ELBO(bnn, ...)"
            )
        if num_data is None and likelihood.kl() is not None:
            raise ValueError(
                f"MaximumLikelihood(net, {type(likelihood).__name__}()): the number of training examples "
                "sets the weight of the noise's prior; write num_data=len(train_set)"
            )
        self._net = net
        self.likelihood = likelihood
        self.output = output
        self.num_data = num_data

    @property
    def net(self) -> nn.Module:
        return self._net

    def parts(self, x: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        nll = self._nll_of(self._outputs(x), y)
        return nll, torch.zeros_like(nll)


def _check(likelihood: Any) -> None:
    if not isinstance(likelihood, Likelihood):
        raise TypeError(
            f"likelihood={likelihood!r}: write kasuri.Categorical() or another Likelihood"
        )
