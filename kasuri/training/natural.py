"""Natural-gradient training: gradients divided by the Fisher information of the posterior.

Adam moves the logarithm of a standard deviation by about its learning rate in each step, whatever is at
stake, so widths take thousands of steps to settle. But how a normal changes with its parameters is known in
closed form. The ordinary gradient, divided by that information, leads to the best width at a rate of its own.
A family states that step next to its definition (`Posterior.natural_step`). Nothing but `.grad` is read,
so that steps work with every estimator, accumulation, clipping, gradient scalers and several processes.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.optimizer import Optimizer

from kasuri.network.random import named_posteriors
from kasuri.objectives.elbo import ELBO
from kasuri.posteriors.base import Posterior

SMALLEST_RATE = 0.003  # of natural steps, however far the learning rate has fallen
LARGEST_MEAN_MOVE = 0.02  # of a mean, in one natural step


class Natural(Optimizer):
    """Natural steps for standard deviations and their factors; Adam for everything else.

    The loss must be that of the given objective, and every call of `step` counts as one step of its
    schedules. What a family has no natural step for, likelihoods and learned priors are trained by Adam.

    Args:
        elbo: the objective; number of data and temperature set the length of natural steps.
        lr: learning rate of Adam.
        rate: of natural steps: which share of the way to the best width, as seen from here, one step goes.
        mean_rate: of natural steps of the means; None trains them by Adam.
        momentum: of the gradients of means, for natural steps.
        betas: of Adam.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(1), estimator="auto")
        >>> elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.HeNormal(), num_data=100)
        >>> opt = kasuri.Natural(elbo)
        >>> elbo(torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])).loss.backward()
        >>> opt.step()
    """

    def __init__(
        self,
        elbo: ELBO,
        lr: float = 2e-3,
        *,
        rate: float = 0.1,
        mean_rate: float | None = None,
        momentum: float = 0.9,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        for name, value in (("lr", lr), ("rate", rate), ("mean_rate", mean_rate)):
            if value is not None and not value > 0:
                raise ValueError(f"Natural({name}={value}): must be above 0")
        self.elbo = elbo
        self.posteriors = [posterior for _, posterior in named_posteriors(elbo.net)]
        natural = [p for q in self.posteriors for p in _natural(q).values()]
        means = [p for q in self.posteriors for n, p in _trained(q) if n == "loc"]
        means = [] if mean_rate is None else means
        taken = {id(p) for p in (*natural, *means)}
        rest = [p for p in elbo.parameters() if p.requires_grad and id(p) not in taken]
        groups: list[dict[str, Any]] = [
            {"params": rest, "lr": lr, "steps": 0},
            {"params": natural, "lr": rate},
            {"params": means, "lr": mean_rate or 0.0},
        ]
        super().__init__(groups, {"lr": lr, "betas": betas, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of everything that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        others, natural, means = self.param_groups
        strength = 1 / max(self.elbo.kl_factor(others["steps"]), 1e-30)
        self._adam(others)
        known, moved = {id(p) for p in natural["params"]}, {id(p) for p in means["params"]}
        for posterior in self.posteriors:
            named = dict(posterior.named_parameters())
            loc = named.get("loc")
            if loc is not None and id(loc) in moved and loc.grad is not None:
                gradient = self._averaged(loc, means["momentum"]) * (means["lr"] * strength)
                move = posterior.covary(gradient)
                loc.sub_(move.clamp(-LARGEST_MEAN_MOVE, LARGEST_MEAN_MOVE))
            length = max(natural["lr"], SMALLEST_RATE) * strength
            gradients = {
                name: torch.zeros_like(p) if p.grad is None else p.grad * length
                for name, p in named.items()
            }
            for name, move in posterior.natural_step(gradients).items():
                if id(named[name]) in known and named[name].grad is not None:
                    named[name].add_(move)
        others["steps"] += 1
        return loss

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

    def _averaged(self, parameter: Tensor, momentum: float) -> Tensor:
        """The mean of the gradients so far, the last ones weighing most."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["average"], state["weight"] = torch.zeros_like(parameter), 0.0
        state["average"].lerp_(parameter.grad, 1 - momentum)
        state["weight"] = state["weight"] * momentum + 1 - momentum
        return state["average"] / state["weight"]


def _trained(posterior: Posterior) -> Iterable[tuple[str, nn.Parameter]]:
    return ((name, p) for name, p in posterior.named_parameters() if p.requires_grad)


@torch.no_grad()
def _natural(posterior: Posterior) -> Mapping[str, nn.Parameter]:
    """The parameters for which the family has a natural step."""
    nothing = {name: torch.zeros_like(p) for name, p in posterior.named_parameters()}
    known = posterior.natural_step(nothing)
    return {name: p for name, p in _trained(posterior) if name in known}
