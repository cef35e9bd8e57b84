"""Natural-gradient training: gradients divided by the Fisher information of the posterior.

Adam moves the logarithm of a standard deviation by about its learning rate in each step, whatever is at
stake, so widths take thousands of steps to settle. But how a normal changes with its parameters is known in
closed form. The ordinary gradient, divided by that information, leads to the best width at a rate of its own.
A family states that step next to its definition (`Posterior.natural_step`). Nothing but `.grad` is read,
so that steps work with every estimator, accumulation, clipping, gradient scalers and several processes.

Means move as under Adam, but their steps are measured in their own standard deviations. What the data leave
open can then move far, what they fix moves little, and the noise of a step is the same share of the
posterior's width at every temperature. Natural steps of the means lack that: at low temperatures their noise
is many times the width.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.optimizer import Optimizer

from kasuri.network.random import named_posteriors
from kasuri.posteriors.base import Located, Posterior

SMALLEST_RATE = 0.003  # of natural steps, however far the learning rate has fallen
OF_SCALES = 0.2  # of the rate of natural steps: the rate of Adam for logarithms of scales
SMALLEST_SHARE = 1e-12  # of a row's squared gradients, in units of the mean over rows
SMALLEST_FACTOR = 1e-30  # of the KL in the loss


class Minimised(Protocol):
    """What `Natural` needs to know of an objective."""

    @property
    def net(self) -> nn.Module: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def kl_factor(self, step: int | None) -> float | Tensor: ...


class Natural(Optimizer):
    """Natural steps for standard deviations and their factors; means in units of their own deviation.

    The loss must be that of the given objective, and every call of `step` counts as one step of its
    schedules. What a family has no natural step for is trained by Adam. So are noise scales of likelihoods
    and learned priors, at a rate that fits logarithms.

    A step of a mean is (lr + reach · σ) times Adam's direction, gradients averaged and divided by the root of
    their averaged squares. These squares are kept as one number for each row and each column of a weight, so
    that the optimiser holds one number for each weight where Adam holds two.

    Args:
        elbo: the objective; number of data and temperature set the length of natural steps.
        lr: learning rate of Adam.
        rate: of natural steps: which share of the way to the best width, as seen from here, one step goes.
        reach: how many of its standard deviations a mean moves in a step, besides lr.
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
        lr: float = 1e-3,
        *,
        rate: float = 0.1,
        reach: float = 0.2,
        betas: tuple[float, float] = (0.9, 0.99),
    ) -> None:
        for name, value, is_right in (
            ("lr", lr, lr > 0),
            ("rate", rate, rate > 0),
            ("reach", reach, reach >= 0),
        ):
            if not is_right:
                raise ValueError(
                    f"Natural({name}={value}): rates must be above 0, and reach at least 0"
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
            "means": {"lr": reach, "betas": betas},
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
                self._move_mean(located, others["lr"], means)
        for posterior, known in self.natural:
            gradients = {name: _in_nats(p, rate, factor) for name, p in known.items()}
            for name, move in posterior.natural_step(gradients).items():
                if known[name].grad is not None and known[name].requires_grad:
                    known[name].add_(move)
        others["steps"] += 1
        return loss

    def _move_mean(self, posterior: Located, lr: float, group: dict[str, Any]) -> None:
        """Adam's step, of a length of its own for every weight; squares are kept for rows and columns."""
        loc, state, (first, second) = posterior.loc, self.state[posterior.loc], group["betas"]
        assert loc.grad is not None
        squares = loc.grad.square()
        if loc.dim() - self.stacked > 1:
            parts = [squares.mean(-1, keepdim=True), squares.mean(-2, keepdim=True)]
        else:
            parts = [squares]
        if not state:
            state["steps"] = 0
            state["gradient"] = torch.zeros_like(loc)
            state["squares"] = [torch.zeros_like(part) for part in parts]
        state["steps"] += 1
        state["gradient"].lerp_(loc.grad, 1 - first)
        for kept, part in zip(state["squares"], parts, strict=True):
            kept.lerp_(part, 1 - second)
        *rows, columns = state["squares"]
        smallest = torch.finfo(loc.dtype).tiny
        scale = posterior.variance.sqrt_().mul_(group["lr"]).add_(lr)
        scale.mul_(columns.clamp(min=smallest).rsqrt_())
        for kept in rows:  # relative to their mean, which the columns have in them
            mean = kept.mean(-2, keepdim=True).clamp_(min=smallest)
            scale.mul_((kept / mean).clamp_(min=SMALLEST_SHARE).rsqrt_())
        correction = (1 - second ** state["steps"]) ** 0.5 / (1 - first ** state["steps"])
        loc.addcmul_(state["gradient"], scale, value=-correction)

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


def _in_nats(parameter: Tensor, rate: float, factor: float | Tensor) -> Tensor:
    """The gradient of the loss in nats of the KL, times the length of the step."""
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    if isinstance(factor, Tensor):  # one for each network in a stack
        factor = factor.reshape(-1, *(1 for _ in parameter.shape[1:]))
        return parameter.grad * (rate / factor.clamp(min=SMALLEST_FACTOR))
    return parameter.grad * (rate / max(factor, SMALLEST_FACTOR))


def _has_width(part: nn.Module) -> TypeGuard[Located]:
    """Whether it has a mean and standard deviations around it."""
    return isinstance(part, Located) and not part.certain


@torch.no_grad()
def _with_natural_steps(posterior: Posterior) -> dict[str, nn.Parameter]:
    """The parameters for which the family has a natural step."""
    nothing = {name: torch.zeros_like(p) for name, p in posterior.named_parameters()}
    known = posterior.natural_step(nothing)
    return {name: p for name, p in posterior.named_parameters() if name in known}
