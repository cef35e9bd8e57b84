"""Scaling of inputs and targets by statistics of the training part alone."""

from typing import Literal, get_args

import torch
from torch import Tensor

from experiments.data.dataset import Dataset, Split
from kasuri.sklearn.scaling import standardise

Scale = Literal["signed", "unit", "standard", "centred"]


def regression(name: str, parts: list[tuple[Tensor, Tensor]]) -> Dataset:
    """The data set of (x, y) for train, valid and test, with inputs and target standardised."""
    _, _, xs = standardise(*(x for x, _ in parts))
    mean, scale, ys = standardise(*(y.reshape(-1, 1) for _, y in parts))
    train, valid, test = (Split(x, y) for x, y in zip(xs, ys, strict=True))
    return Dataset(
        name,
        train,
        valid,
        test,
        classes=None,
        target_scale=scale.item(),
        target_mean=mean.item(),
    )


def picture_set(
    name: str,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    classes: tuple[str, ...],
    scale: Scale,
    valid: int,
    flat: bool,
) -> Dataset:
    """The data set of pictures with bytes as pixels, the last `valid` of train as validation.

    Args:
        name: of the set.
        train: pictures (N, C, H, W) as uint8 and labels (N,).
        test: likewise.
        classes: names of the labels.
        scale: "unit" pixels in [0, 1]; "signed" in [-1, 1]; "standard" minus mean, divided by the
            standard deviation, of each channel; "centred" in [0, 1] minus the mean of each pixel.
        valid: number of validation pictures.
        flat: one vector per picture instead of (C, H, W).
    """
    pixels, labels = train
    if not 0 <= valid < len(pixels):
        raise ValueError(f"valid={valid}: {name} has {len(pixels)} training pictures in all")
    fit = len(pixels) - valid
    divide, subtract = _pixel_scaling(scale, pixels[:fit])

    def part(x: Tensor, y: Tensor) -> Split:
        scaled = x.float().div_(divide.float()).sub_(subtract.float())
        return Split(scaled.flatten(1) if flat else scaled, y.long())

    return Dataset(
        name,
        part(pixels[:fit], labels[:fit]),
        part(pixels[fit:], labels[fit:]),
        part(*test),
        classes=classes,
        pictures=tuple(pixels.shape[1:]),
        pixel_range=(0 - subtract.max().item(), (255 / divide - subtract).max().item()),
    )


def _pixel_scaling(scale: Scale, train: Tensor) -> tuple[Tensor, Tensor]:
    """(a, b), broadcasting over pictures, such that pixel / a - b is scaled as asked."""
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    if scale == "unit":
        return 255 * one, 0 * one
    if scale == "signed":
        return 127.5 * one, one
    if scale == "centred":
        return 255 * one, train.sum(0, dtype=torch.int64).double() / (255 * len(train))
    if scale == "standard":
        mean, std = _channel_statistics(train)
        return 255 * std, mean / std
    raise ValueError(f"scale={scale!r}: choose one of {', '.join(map(repr, get_args(Scale)))}")


def _channel_statistics(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of pixel / 255 per channel, (C, 1, 1) each.

    Sums of bytes and of their squares are whole numbers, which float64 adds without rounding; in
    pieces, to save memory.
    """
    total = torch.zeros(pictures.shape[1], dtype=torch.float64)
    squares = torch.zeros_like(total)
    for piece in pictures.split(500):
        values = piece.transpose(0, 1).flatten(1).double()
        total += values.sum(1)
        squares += torch.linalg.vecdot(values, values)
    n = pictures[:, 0].numel()
    mean = total / n
    std = (squares / n - mean**2).sqrt()
    std[std == 0] = 255.0
    return mean.view(-1, 1, 1) / 255, std.view(-1, 1, 1) / 255
