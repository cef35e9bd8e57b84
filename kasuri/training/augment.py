"""Augmentations: random changes of a batch of pictures, drawn from a given generator.

An augmentation is any function of (x, generator). These draw on the generator's device, so that a
CPU generator gives the same pictures on every device.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Augmentation = Callable[[Tensor, torch.Generator], Tensor]


def flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each picture mirrored left to right with probability one half.

    Args:
        x: (N, C, H, W).
        generator: of the coins.

    Examples:
        >>> x = torch.arange(3.0).expand(2, 1, 1, 3)
        >>> flip(x, torch.Generator().manual_seed(0)).flatten(1)
        tensor([[2., 1., 0.],
                [0., 1., 2.]])
    """
    _require_pictures("flip", x)
    coin = torch.rand(len(x), generator=generator, device=generator.device) < 0.5
    return torch.where(coin.to(x.device).view(-1, 1, 1, 1), x.flip(-1), x)


@dataclass(frozen=True)
class crop:  # used like a function
    """The augmentation that moves each picture by up to `padding` pixels in both directions.

    The picture is surrounded by zeros, then a window of its old size is cut out at random. Zero is
    black for pixels in [0, 1], and the mean for standardised ones.

    Examples:
        >>> move = crop(padding=1)
        >>> move(torch.ones(5, 3, 8, 8), torch.Generator().manual_seed(0)).shape
        torch.Size([5, 3, 8, 8])
    """

    padding: int = 4

    def __post_init__(self) -> None:
        if self.padding < 1:
            raise ValueError(f"crop: padding must be at least one pixel, got {self.padding}")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        _require_pictures("crop", x)
        height, width = x.shape[-2:]
        corner = torch.randint(
            2 * self.padding + 1, (2, len(x)), generator=generator, device=generator.device
        )
        top, left = corner.to(x.device)
        # a view of every possible window of every picture; indexing copies one of each
        windows = F.pad(x, (self.padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
        return windows[torch.arange(len(x), device=x.device), :, top, left]


class compose:  # used like a function
    """The augmentation that applies several, from left to right.

    Examples:
        >>> both = compose(crop(2), flip)
        >>> both(torch.ones(5, 3, 8, 8), torch.Generator().manual_seed(0)).shape
        torch.Size([5, 3, 8, 8])
    """

    def __init__(self, *augmentations: Augmentation) -> None:
        self.augmentations = augmentations

    def __repr__(self) -> str:  # what results say of their settings
        return "composed"

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        for augmentation in self.augmentations:
            x = augmentation(x, generator)
        return x


def _require_pictures(name: str, x: Tensor) -> None:
    if x.dim() != 4:
        raise ValueError(
            f"{name} needs pictures of shape (N, C, H, W), got {tuple(x.shape)}; "
            "load the data with flat=False"
        )
