"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100, read without pickle and without unpacking archives.

CIFAR comes from the official binary archives, or from prepared copies: lossless WebP strips of 500 pictures,
labels, and the names of the classes.
"""

import gzip
import struct
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from experiments.data.dataset import Dataset, Split
from experiments.data.files import (
    DIGESTS,
    FILES,
    damaged,
    find,
    obtain,
    read_arrays,
    require_digest,
)

Scale = Literal["signed", "unit", "standard"]
Raw = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]  # (bytes, labels) of train and test
Read = tuple[Raw, tuple[str, ...], str]  # with the names of the classes, and a note

IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
}
STRIP = 500  # pictures per strip


@dataclass(frozen=True)
class Cifar:
    """The official archive of one of the two sets."""

    archive: str
    label_bytes: int  # in front of the pixels of a picture; the last counts
    train: tuple[str, ...]  # files of the archive with training pictures
    test: str  # the file with test pictures
    names: str  # the file with the names of the classes
    note: str = ""  # what a user of the prepared copy should know


def strips(name: str) -> tuple[str, ...]:
    """Files of a prepared copy: labels, names, training pictures, test pictures."""
    files = [f"train-{i:03}.webp" for i in range(100)] + [f"test-{i:03}.webp" for i in range(20)]
    return tuple(f"{name}/{file}" for file in ("labels.npz", "class_names.txt", *files))


CIFAR = {
    "cifar-10": Cifar(
        "cifar-10/cifar-10-binary.tar.gz",
        label_bytes=1,
        train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        test="test_batch.bin",
        names="batches.meta.txt",
    ),
    "cifar-100": Cifar(
        "cifar-100/cifar-100-binary.tar.gz",
        label_bytes=2,
        train=("train.bin",),
        test="test.bin",
        names="fine_label_names.txt",
        note="the prepared copy, whose pictures are in another order than in the official archive: other "
        "pictures validate",
    ),
}


def read_mnist(name: str) -> Read:
    return read_idx(name), CLASSES[name], ""


def read_cifar(name: str) -> Read:
    """The prepared copy if it is there, else the archive."""
    source = CIFAR[name]
    if paths := find(*strips(name)):
        return *_read_strips(name, paths), source.note
    return *_read_archive(source), ""


def read_idx(name: str) -> Raw:
    """The pictures of MNIST or Fashion-MNIST as published: type and dimensions, sizes, values."""
    arrays = []
    for file in IDX_FILES:
        content = bytearray(gzip.decompress(obtain(f"{name}/{file}").read_bytes()))
        dims = content[3]
        shape = struct.unpack_from(f">{dims}I", content, 4)
        values = torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * dims)
        arrays.append(values.reshape(shape))
    x, y, test_x, test_y = arrays
    return (x.unsqueeze(1), y), (test_x.unsqueeze(1), test_y)


def _read_archive(source: Cifar) -> tuple[Raw, tuple[str, ...]]:
    """Pictures and names of classes, straight out of the archive in one pass."""
    wanted = (*source.train, source.test, source.names)
    contents: dict[str, bytes] = {}
    with tarfile.open(obtain(source.archive), "r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None and (name := Path(member.name).name) in wanted:
                contents[name] = file.read()

    def part(*names: str) -> tuple[Tensor, Tensor]:
        content = bytearray(b"".join(contents[name] for name in names))
        rows = torch.frombuffer(content, dtype=torch.uint8).view(-1, source.label_bytes + 3072)
        pixels, labels = rows[:, source.label_bytes :], rows[:, source.label_bytes - 1]
        return pixels.reshape(-1, 3, 32, 32), labels

    return (part(*source.train), part(source.test)), tuple(contents[source.names].decode().split())


def _read_strips(name: str, paths: list[Path]) -> tuple[Raw, tuple[str, ...]]:
    """Pictures and names of classes of the prepared copy, checked by a digest of all of them."""
    labels, names, *images = paths
    url = FILES[CIFAR[name].archive][0]
    arrays = read_arrays(labels, ("train_labels", "test_labels"), url)
    pixels = np.concatenate([_decode(image, url) for image in images])
    split = 100 * STRIP
    classes = tuple(names.read_text(encoding="utf-8").split())
    arrays |= {"train": pixels[:split], "test": pixels[split:], "classes": np.array(classes)}
    require_digest(arrays, DIGESTS[name], labels.parent, url)
    train, test = (
        (torch.from_numpy(arrays[part]), torch.from_numpy(arrays[f"{part}_labels"]))
        for part in ("train", "test")
    )
    return (train, test), classes


def _decode(path: Path, url: str) -> Any:
    """Pixels of a strip, (500, 3, 32, 32)."""
    try:
        with Image.open(path) as strip:
            pixels = np.asarray(strip.convert("RGB")).reshape(STRIP, 32, 32, 3)
    except Exception as error:  # a damaged picture can raise nearly anything
        raise damaged(path, f"it cannot be read ({error})", url) from error
    return pixels.transpose(0, 3, 1, 2)


def picture_set(
    name: str, read: Callable[[str], Read], *, scale: Scale, flat: bool, valid: int = 10_000
) -> Dataset:
    """The data set of pictures that `read` gives.

    Labels of CIFAR-100 are the fine classes. `note` of the data set says so if its pictures are not those of
    the literature, or not in the official order.

    Args:
        name: of the data set.
        read: gives, for this name, bytes (N, C, H, W) and labels of train and test, the names of the
            classes, and the note.
        scale: "signed" pixels in [-1, 1] (the default of MNIST and Fashion-MNIST); "unit" in [0, 1]
            (of the others); "standard" by mean and standard deviation of each channel over the
            training part.
        flat: inputs of shape (N, CHW), as usual for MNIST and its relatives; else (N, C, H, W).
        valid: how many of the last training pictures are the validation part.
    """
    ((pixels, labels), test), classes, note = read(name)
    if not 0 <= valid < len(pixels):
        raise ValueError(
            f"valid={valid} must be below the {len(pixels)} training pictures of {name}"
        )
    fit = len(pixels) - valid
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    scales = {"unit": (255 * one, 0 * one), "signed": (127.5 * one, one)}
    if scale == "standard":
        mean, std = channel_statistics(pixels[:fit])
        scales[scale] = 255 * std, mean / std
    if scale not in scales:
        raise ValueError(f"scale={scale!r} must be 'signed', 'unit' or 'standard'")
    divide, subtract = scales[scale]

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
        note=note,
    )


def channel_statistics(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of pixel / 255 per channel, (C, 1, 1) each, without rounding of sums."""
    channels = (channel.flatten() for channel in pictures.transpose(0, 1))
    counts = torch.stack([torch.bincount(values, minlength=256) for values in channels]).double()
    values, n = torch.arange(256, dtype=torch.float64), pictures[:, 0].numel()
    mean = counts @ values / n
    std = (counts @ values.square() / n - mean**2).sqrt()
    std[std == 0] = 255.0  # a channel of one colour is only centred
    return mean.view(-1, 1, 1) / 255, std.view(-1, 1, 1) / 255
