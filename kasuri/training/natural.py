"""Natural-gradient training: gradients divided by the Fisher information of the posterior.

Adam moves the logarithm of a standard deviation by about its learning rate in each step, whatever is at
stake, so widths take thousands of steps to settle. But how a normal changes with its parameters is known in
closed form. The ordinary gradient, divided by that information, leads to the best width at a rate of its own.
A family states that step next to its definition (`Posterior.natural_step`). Nothing but `.grad` is read,
so that steps work with every estimator, accumulation, clipping, gradient scalers and several processes.

Means take two steps at once, Adam's and a natural one, variance times gradient. The natural one takes weights
that the data leave open to where the prior wants them, which Adam does slowly and restlessly. Its noise grows
with the number of data, and falls with the temperature and the size of batches. Where it is more than a few
standard deviations, the natural step is shortened by its square, so that it never moves a mean by a large
share of the posterior's width. Where the noise of a whole matrix is large, all its natural steps are slower:
else weights would be given up before the data have been seen. So a cold posterior is trained by Adam's steps,
and one at temperature 1 with large batches by natural ones.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.optimizer import Optimizer

from kasuri.network.random import named_posteriors
from kasuri.posteriors.base import Located, Posterior

SMALLEST_RATE = 0.003  # of natural steps, however far the learning rate has fallen
OF_SCALES = 0.1  # rate of Adam for logarithms of scales, in units of the rate of natural steps
LOUD = 5.0  # noise of a mean's natural step, in its standard deviations, from which it is shortened
CALM = 15.0  # such noise of a whole matrix from which its natural steps are slower
SMALLEST_FACTOR = 1e-30  # of the KL in the loss


class Minimised(Protocol):
    """What `Natural` needs to know of an objective."""

    @property
    def net(self) -> nn.Module: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def kl_factor(self, step: int | None) -> float | Tensor: ...


class Natural(Optimizer):
    """Natural steps for standard deviations and their factors; Adam's and natural steps for means.

    The loss must be that of the given objective, and every call of `step` counts as one step of its
    schedules. What a family has no natural step for is trained by Adam. So are noise scales of likelihoods
    and learned priors, at a rate that fits logarithms.

    Averages of squared gradients of a mean are kept as one number for each row and each column of a weight.
    So the optimiser holds one number for each weight where Adam holds two.

    Args:
        elbo: the objective; number of data and temperature set the length of natural steps.
        lr: learning rate of Adam.
        rate: of natural steps: which share of the way to the best width, as seen from here, one step goes.
        mean_rate: of natural steps of means; 0 for Adam's steps alone.
        betas: how long gradients of means and their squares are averaged, as in Adam.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(1))
        >>> elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.HeNormal(), num_data=100)
        >>> opt = kasuri.Natural(elbo)
        >>> elbo(torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])).loss.backward()
        >>> opt.step()
    """

    def __init__(
        self,
        elbo: Minimised,
        lr: float = 2e-3,
        *,
        rate: float = 0.2,
        mean_rate: float = 0.2,
        betas: tuple[float, float] = (0.9, 0.99),
    ) -> None:
        for name, value, is_right in (
            ("lr", lr, lr > 0),
            ("rate", rate, rate > 0),
            ("mean_rate", mean_rate, mean_rate >= 0),
        ):
            if not is_right:
                raise ValueError(
                    f"Natural({name}={value}): rates must be above 0, and mean_rate at least 0"
                )
        self.elbo = elbo
        self.stacked = int(getattr(elbo, "stacked", 0))  # dimensions of parameters before their own
        posteriors = [posterior for _, posterior in named_posteriors(elbo.net)]
        self.natural = [(posterior, _with_natural_steps(posterior)) for posterior in posteriors]
        self.located = [part for q in posteriors for part in q.modules() if _has_width(part)]
        kinds = dict.fromkeys(map(id, elbo.net.parameters()), "others")
        kinds |= {id(posterior.loc): "means" for posterior in self.located}
        kinds |= {id(p): "widths" for _, known in self.natural for p in known.values()}
        groups: dict[str, dict[str, Any]] = {
            "others": {"lr": lr, "betas": (0.9, 0.999), "steps": 0},
            "scales": {"lr": rate * OF_SCALES, "betas": (0.9, 0.999)},
            "widths": {"lr": rate},
            "means": {"lr": mean_rate, "betas": betas},
        }
        for kind, group in groups.items():
            group["params"] = [
                p
                for p in elbo.parameters()
                if p.requires_grad and kinds.get(id(p), "scales") == kind
            ]
        super().__init__(list(groups.values()), {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of everything that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        others, scales, widths, means = self.param_groups
        factor = self.elbo.kl_factor(others["steps"])
        rate = max(widths["lr"], SMALLEST_RATE)
        self._adam(others)
        self._adam(scales)
        for located in self.located:
            if located.loc.grad is not None and located.loc.requires_grad:
                self._move_mean(located, others["lr"], means, _data(factor, located.loc))
        for posterior, known in self.natural:
            gradients = {
                name: torch.zeros_like(p) if p.grad is None else p.grad * (rate * _data(factor, p))
                for name, p in known.items()
            }
            for name, move in posterior.natural_step(gradients).items():
                if known[name].grad is not None and known[name].requires_grad:
                    known[name].add_(move)
        others["steps"] += 1
        return loss

    def _move_mean(
        self,
        posterior: Located,
        lr: float,
        group: dict[str, Any],
        data: float | Tensor,
    ) -> None:
        """Adam's step and a natural one; squares of gradients are kept for rows and columns."""
        loc, state, (first, second) = posterior.loc, self.state[posterior.loc], group["betas"]
        gradient = loc.grad
        assert gradient is not None
        squares = gradient.square()
        if loc.dim() - self.stacked > 1:
            parts = [squares.mean(-1, keepdim=True), squares.mean(-2, keepdim=True)]
        else:
            parts = [squares]
        if not state:
            state["steps"] = 0
            state["gradient"] = torch.zeros_like(loc)
            state["squares"] = [torch.zeros_like(part) for part in parts]
        state["steps"] += 1
        state["gradient"].lerp_(gradient, 1 - first)
        for kept, part in zip(state["squares"], parts, strict=True):
            kept.lerp_(part, 1 - second)
        # the square of a weight's gradient is about that of its row times that of its column
        *rows, columns = state["squares"]
        tiny = torch.finfo(loc.dtype).tiny
        columns = columns.clamp(min=tiny) / (1 - second ** state["steps"])
        row = torch.ones_like(columns[..., :1])
        if rows:
            row = (rows[0] / rows[0].mean(-2, keepdim=True).clamp_(min=tiny)).clamp_(min=tiny)
        whole = 1 / (1 - first ** state["steps"])
        direction = state["gradient"] * (columns.rsqrt() * whole)
        # at most lr: of a weight that is all there is in its row and column the product says too little
        loc.add_(direction.mul_(row.rsqrt()).clamp_(-1, 1), alpha=-lr)
        if group["lr"]:
            variance = posterior.variance
            row = row * data**2
            if rows:
                noise = row.mT @ variance @ columns.mT / math.prod(variance.shape[-2:])
            else:
                noise = (variance * columns * row).mean(-1, keepdim=True)
            rate = (1 + noise / CALM**2).rsqrt() * (-whole * group["lr"] * data)
            inverse = variance.reciprocal_().addcmul_(row / LOUD**2, columns)
            loc.addcdiv_(state["gradient"] * rate, inverse)

    def _adam(self, group: dict[str, Any]) -> None:
        """Adam's step, with the function that torch's Adam calls."""
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        for p in parameters:
            if not self.state[p]:
                self.state[p] = {
                    "step": torch.zeros((), dtype=torch.float32, device=p.device),
                    "exp_avg": torch.zeros_like(p, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(p, memory_format=torch.preserve_format),
                }
        states = [self.state[p] for p in parameters]
        adam(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


def _data(factor: float | Tensor, parameter: Tensor) -> float | Tensor:
    """Number of data over temperature, which makes nats of the KL of a loss per example."""
    if isinstance(factor, Tensor):  # one for each network in a stack
        shape = (-1, *(1 for _ in parameter.shape[1:]))
        return factor.to(parameter).clamp(min=SMALLEST_FACTOR).reciprocal().reshape(shape)
    return 1 / max(factor, SMALLEST_FACTOR)


def _has_width(part: nn.Module) -> TypeGuard[Located]:
    """Whether it has a mean and standard deviations around it."""
    return isinstance(part, Located) and "loc" in part._parameters and not part.certain


@torch.no_grad()
def _with_natural_steps(posterior: Posterior) -> dict[str, nn.Parameter]:
    """The parameters for which the family has a natural step."""
    nothing = {name: torch.zeros_like(p) for name, p in posterior.named_parameters()}
    known = posterior.natural_step(nothing)
    return {name: p for name, p in posterior.named_parameters() if name in known}
