"""What a posterior is: a distribution over one weight matrix that knows nothing about layers.

To add a family, write one file with a `Posterior` (or `Elementwise`, if the weights are independent) built
around a weight, and a `Family`, a frozen dataclass of options whose call builds that posterior; then export
the family in `kasuri/__init__.py` and add one line to `tests/laws/families.py`. Nothing else in the package
has to know its name.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.numerics.safe import sum_squares
from kasuri.numerics.sampling import add_noise, scaled_draw
from kasuri.storage import Storable
from kasuri.streams import normal_like

LOG_TWO_PI = math.log(2 * math.pi)
LARGEST_MOVE = 0.1  # of the logarithm of a standard deviation, in one natural step
NORMAL_ENTROPY = 0.5 * (1 + LOG_TWO_PI)  # of N(0, 1)


class Op(ABC):
    """One affine layer as a function of its input and a weight matrix.

    `op(x, A)` runs the layer without bias and with the matrix A (*blocks, rows, in), whose
    number of rows is free; `op.shifted(x, A, b)` adds a bias; `op.bias` is the layer's own.
    These and the other methods are all that families build their `push` from.

    Attributes:
        bias: of the layer: random, a constant, or None.
        is_linear: op(x, A) is x Aᵀ over the last dimension of x: fused forms of that may be used.
    """

    bias: "Posterior | Tensor | None"
    is_linear: bool = False

    def __call__(self, x: Tensor, matrix: Tensor) -> Tensor:
        """The layer at x with weight `matrix` and no bias."""
        return self.shifted(x, matrix, None)

    @abstractmethod
    def shifted(self, x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        """The layer at x with weight `matrix` and this bias."""

    @abstractmethod
    def mix(self, hidden: Tensor, factor: Tensor) -> Tensor:
        """Features of a hidden output, K for each block, combined by a factor (*blocks, K, out)."""

    @abstractmethod
    def noise(self, y: Tensor, features: int) -> Tensor:
        """Independent N(0, 1) like an output y, but with so many features for each block."""

    @abstractmethod
    def local_is_exact(self, x: Tensor) -> bool:
        """Whether each weight meets one number per example: fresh weights per example are exact."""

    @abstractmethod
    def counts_examples(self, y: Tensor) -> bool:
        """Whether the first dimension of an output counts examples, and each is one row."""

    @abstractmethod
    def along_features(self, vector: Tensor, y: Tensor) -> Tensor:
        """A vector over output features, shaped to broadcast against an output y."""

    @abstractmethod
    def signs(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Random ±1 for input and output features, one set per example, constant over positions."""


class Posterior(nn.Module, ABC):
    """q(W) over a matrix W (*blocks, out, in), or over a vector or scalar.

    Nothing is written to the module in any of these methods: copies, vmap and checkpointing are safe.

    Attributes:
        note: what `print` and `kasuri.summary` say about it, such as why a family chose another one.
        certain: whether all mass is at one value, so that there is no density.
        is_reused: whether some call has used the weights more than once; then `auto` draws them, not outputs.
    """

    note: str = ""
    certain: bool = False
    is_reused: bool = False

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """Shape of W."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """E[W]."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Var[W], elementwise."""

    @abstractmethod
    def rsample(self) -> Tensor:
        """One reparameterised draw; noise comes from `kasuri.streams`."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Differential entropy in nats."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Stay in full precision: standard deviations cannot be learned in half of it."""

        def precise(tensor: Tensor) -> Tensor:
            new = fn(tensor)
            halved = new.is_floating_point() and new.element_size() < min(4, tensor.element_size())
            return tensor.to(new.device) if halved else new

        return super()._apply(precise, recurse)

    def require_density(self) -> None:
        """Refuse, if the weights have no density that could be written down: called where one is needed."""

    def squared_norm(self) -> Tensor:
        """E‖W‖² = Σ (mean² + variance)."""
        return (self.mean.square() + self.variance).sum()

    def entropy_and_square(self) -> tuple[Tensor, Tensor]:
        """(entropy, E‖W‖²), for families that can share work between the two."""
        return self.entropy(), self.squared_norm()

    def pull(self, directions: Tensor) -> Tensor:
        """Fᵀ j of directions j (N, *shape), F Fᵀ = Cov[W]: products of two are covariances of ⟨j, W⟩.

        As if weights were independent; families whose weights covary have their own.
        """
        return (directions * self.variance.sqrt()).flatten(1)

    def kl(self, prior: Any) -> Tensor:
        """KL(q ‖ p) = -entropy(q) - E_q[log p]: any family against any prior."""
        return prior.kl(self)

    def numel(self) -> int:
        """Number of weights (not of variational parameters)."""
        return math.prod(self.shape)

    def natural_step(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What to add to parameters to go down these gradients, divided by the Fisher information of q.

        A step in the distribution, not in its parameters: it is the same however q is parametrised.
        Logarithms of standard deviations move by at most `LARGEST_MOVE`. Parameters that are
        missing in the answer have no natural step; they are trained by Adam.

        Means are not among them: the optimiser moves them in units of their standard deviation.

        Args:
            gradients: by name of parameter, those of a loss in nats times the length of the step. The
                parameters may have one more dimension in front, with one network in each place.
        """
        return {}

    def part(self, rows: Tensor, columns: Tensor | None = None) -> "Posterior | None":
        """The posterior of some rows and columns alone; None if the family has none for them.

        It is the exact marginal, of the same family. A family without such a marginal may give what comes
        closest, and says so. Where the answer is None, the caller uses independent normals with the same
        moments.

        Args:
            rows: indices (*blocks, n') of the rows that are left in each block; (n',) of a vector.
            columns: indices (*blocks, m') of the columns that are left; None for a vector.
        """
        return None

    def some_blocks(self, blocks: Tensor, *, single: bool = False) -> "Posterior":
        """A copy with these blocks alone; `single`: of one block, without a dimension for it."""
        other = copy.deepcopy(self)
        for tensor in (*other.parameters(), *other.buffers()):
            chosen = tensor.data[blocks]
            tensor.data = chosen.squeeze(0) if single else chosen
        return other

    def family_of_part(self, family: "Builder") -> "Builder":
        """The family that files know this posterior by, if it is part of a posterior of that family."""
        return family

    def extra_repr(self) -> str:
        """The shape and the note, for `print(net)`."""
        return ", ".join(filter(None, ("x".join(map(str, self.shape)), self.note)))


class Pushable(ABC):
    """A posterior that can draw a layer's output directly (local reparameterisation)."""

    @abstractmethod
    def push(self, op: Op, x: Tensor) -> Tensor:
        """A draw of op(x, W) + bias with fresh W and bias for every example."""

    def push_is_cheaper(self, vectors: int) -> bool:
        """Whether pushing so many input vectors takes less arithmetic than one draw of W; `auto` asks."""
        return True


class Located(Posterior):
    """A posterior whose mean is a parameter, `loc`."""

    loc: nn.Parameter

    @property
    def shape(self) -> torch.Size:
        return self.loc.shape

    @property
    def mean(self) -> Tensor:
        return self.loc


def bounded_move(move: Tensor) -> Tensor:
    """A move of logarithms, none by more than `LARGEST_MOVE`."""
    return move.clamp(-LARGEST_MOVE, LARGEST_MOVE)


class Elementwise(Located, Pushable):
    """Independent normal weights: everything follows from `mean` and `scale`."""

    @property
    @abstractmethod
    def scale(self) -> Tensor:
        """Standard deviations, shaped like W."""

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    def perturbation(self) -> Tensor:
        """A draw of W - E[W]."""
        return self.scale * normal_like(self.mean)

    def rsample(self) -> Tensor:
        return scaled_draw(self.mean, self.scale)

    def sums(self) -> tuple[Tensor, Tensor]:
        """(Σ log scale, Σ mean² + Σ scale²)."""
        scale = self.scale
        return scale.log().sum(), sum_squares(self.mean) + sum_squares(scale)

    def entropy_and_square(self) -> tuple[Tensor, Tensor]:
        """n/2 · log(2πe) + Σ log scale, and Σ mean² + Σ scale²."""
        logs, squares = self.sums()
        return logs + self.numel() * NORMAL_ENTROPY, squares

    def entropy(self) -> Tensor:
        return self.entropy_and_square()[0]

    def push(self, op: Op, x: Tensor) -> Tensor:
        """op(x, mean) + √(op(x², variance)) ⊙ noise, weight and bias noise in one draw."""
        return noisy_output(op, x, self.mean, op(x.square(), self.variance))


def noisy_output(op: Op, x: Tensor, mean: Tensor, variance: Tensor | None) -> Tensor:
    """The layer at the mean plus normal noise of this variance (None for none) and that of the bias."""
    centre, spread = bias_moments(op)
    y = op.shifted(x, mean, centre)
    if spread is not None:
        spread = op.along_features(spread, y)
        variance = spread if variance is None else variance + spread
    return y if variance is None else add_noise(y, variance, examples=op.counts_examples(y))


def bias_moments(op: Op) -> tuple[Tensor | None, Tensor | None]:
    """Mean and variance of an op's bias; the variance is None where it is not random."""
    if isinstance(op.bias, Posterior):
        return op.bias.mean, op.bias.variance
    return op.bias, None


@dataclass(frozen=True, kw_only=True)
class Family(Storable, ABC):
    """Options of a posterior family; calling it with a weight builds the posterior.

    Args:
        scale: mean initial standard deviation of the weights.
        noise: relative spread of the initial standard deviations (0 for none).
        max_scale: upper bound of every standard deviation, for the whole of training.
        mean: "given" starts the means at the weight; "he" at N(0, 2/fan-in), biases at 0.
    """

    scale: float = 0.01
    noise: float = 0.1
    max_scale: float | None = None
    mean: str = "given"

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not 0 < self.scale < math.inf:
            raise ValueError(
                f"{name}(scale={self.scale}): must be positive; for no uncertainty write kasuri.Point()"
            )
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"{name}(noise={self.noise}): must be 0 or more")
        if self.max_scale is not None and not self.max_scale > self.scale:
            raise ValueError(
                f"{name}(scale={self.scale}, max_scale={self.max_scale}): scale, where standard deviations "
                "start, must be below max_scale"
            )
        if self.mean not in ("given", "he"):
            raise ValueError(f'{name}(mean={self.mean!r}): write mean="given" or mean="he"')

    @abstractmethod
    def __call__(self, weight: Tensor) -> Posterior:
        """The posterior around an initial weight (*blocks, out, in) or vector."""

    def for_vectors(self) -> "Family":
        """The family used for biases and other vectors when the layer has this family."""
        return self

    def for_kernel(self, positions: int) -> "Family":
        """The family used for a convolution, each of whose inputs owns so many neighbouring columns."""
        return self

    def initial_mean(self, weight: Tensor) -> Tensor:
        """The given weight, or He's initialisation of its shape."""
        if self.mean == "given":
            return weight.detach().clone()
        if weight.dim() < 2:
            return torch.zeros_like(weight, requires_grad=False)
        return torch.randn_like(weight, requires_grad=False) * math.sqrt(2 / weight.shape[-1])


Builder = Callable[[Tensor], Posterior]  # a Family, or a function of the initial weight
FamilyLike = Builder | type[Family]
