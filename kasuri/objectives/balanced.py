"""The temperature that keeps a wide network's KL from drowning its data: η = τ p / N.

The KL of independent weights is a sum over N of them, the data term a sum over p examples. With the
KL multiplied by η = τ p / N both grow alike: the loss per example is NLL + τ · KL / N, in which neither
the number of data nor the width appears.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kasuri.network.contexts import require_posteriors
from kasuri.posteriors.base import Posterior
from kasuri.priors.base import Prior

Counted = Literal["parameters", "neurons", "layers"]
_COUNTED = ("parameters", "neurons", "layers")


@dataclass(frozen=True)
class Balanced:
    """A temperature η = τ p / N: p examples, N of what the network is made of.

    Args:
        tau: τ, the weight of the KL per N.
        over: what N counts. "parameters": every random weight, the choice for deep networks. "neurons":
            hidden units, the outputs of all layers but the last, as in the derivation for one hidden layer;
            there the two differ by the weights per neuron, which τ can absorb. "layers": the random
            weights of a layer, for the KL of that layer, so that every layer weighs the same.
        average: divide the network's output by the number of inputs of its last layer: the 1/N of the
            two-layer model f = (1/N) Σ a_j σ(<b_j, x>). It belongs to the objective, like `output` of
            `kasuri.ELBO`: predict and evaluate with the objective, not with the bare network.

    Examples:
        >>> import kasuri
        >>> net = nn.Sequential(nn.Linear(4, 50, bias=False), nn.ReLU(), nn.Linear(50, 2, bias=False))
        >>> bnn = kasuri.bayesianize(net, kasuri.MeanField())
        >>> Balanced(0.5).temperature(bnn, num_data=100), Balanced(0.5, "neurons").temperature(bnn, 100)
        (0.16666666666666666, 1.0)
    """

    tau: float
    over: Counted = "parameters"
    average: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no temperature."""
        if not (self.tau >= 0 and math.isfinite(self.tau)):
            raise ValueError(f"Balanced(tau={self.tau}): a finite number, 0 or above")
        if self.over not in _COUNTED:
            raise ValueError(
                f"Balanced(over={self.over!r}): write one of {', '.join(map(repr, _COUNTED))}"
            )

    def temperature(self, bnn: nn.Module, num_data: int) -> float:
        """η of a network and so many examples; over layers, the one that `shares` refer to."""
        posteriors = require_posteriors(bnn)
        count = _neurons(posteriors) if self.over == "neurons" else _weights(posteriors.values())
        return self.tau * num_data / count

    def shares(
        self, bnn: nn.Module, priors: Sequence[tuple[Prior, Sequence[str]]] = ()
    ) -> dict[str, float] | None:
        """Factor of every posterior's KL besides the temperature, N / N_layer; None if all are 1.

        Args:
            bnn: a converted network.
            priors: with the names of what they govern; refused if their KL cannot be divided.

        Examples:
            >>> import kasuri
            >>> net = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 1, bias=False))
            >>> Balanced(1.0, "layers").shares(kasuri.bayesianize(net, kasuri.MeanField()))
            {'0.weight': 1.3333333333333333, '1.weight': 4.0}
        """
        if self.over != "layers":
            return None
        posteriors = require_posteriors(bnn)
        for prior, names in priors:
            _refuse_inseparable(prior, [posteriors[name] for name in names])
        sizes: dict[str, int] = {}
        for name, q in posteriors.items():
            sizes[_layer(name)] = sizes.get(_layer(name), 0) + q.numel()
        total = sum(sizes.values())
        return {name: total / sizes[_layer(name)] for name in posteriors}

    def output(
        self, bnn: nn.Module, output: Callable[[Any], Tensor] | None
    ) -> Callable[[Any], Tensor] | None:
        """The user's `output`, followed by the division if there is to be one."""
        if not self.average:
            return output
        return Averaged(_matrices(require_posteriors(bnn))[-1].shape[-1], output)


@dataclass(frozen=True)
class Averaged:
    """A network's output divided by a number of neurons.

    Examples:
        >>> Averaged(4)(8.0)
        2.0
    """

    neurons: int
    output: Callable[[Any], Any] | None = None

    def __call__(self, out: Any) -> Any:
        """The quotient."""
        return (out if self.output is None else self.output(out)) / self.neurons


@torch.no_grad()
def _refuse_inseparable(prior: Prior, posteriors: Sequence[Posterior]) -> None:
    """Refuse layers of their own weight under a prior that is fitted to several layers at once."""
    whole = prior.kl(*posteriors)
    apart = torch.stack([prior.kl(q) for q in posteriors]).sum()
    if not torch.isclose(whole, apart, rtol=1e-3, atol=1e-3):
        raise ValueError(
            f"Balanced(over='layers') with {type(prior).__name__}, which is fitted to several layers at "
            "once: its KL cannot be divided among them; give every layer a prior of its own by a "
            "mapping of names, or write over='parameters'"
        )


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _weights(posteriors: Any) -> int:
    return sum(q.numel() for q in posteriors)


def _matrices(posteriors: Mapping[str, Posterior]) -> list[Posterior]:
    found = [q for q in posteriors.values() if len(q.shape) >= 2]
    if not found:
        raise ValueError(
            "Balanced: every posterior of this network is one of a vector, so there are no neurons to "
            'count; convert weight matrices, or write Balanced(tau, over="parameters")'
        )
    return found


def _neurons(posteriors: Mapping[str, Posterior]) -> int:
    hidden = _matrices(posteriors)[:-1]
    if not hidden:
        raise ValueError(
            'Balanced(over="neurons"): this network has a single random weight matrix, so it has no '
            'hidden neurons to count; write over="parameters"'
        )
    return sum(math.prod(q.shape[:-1]) for q in hidden)
