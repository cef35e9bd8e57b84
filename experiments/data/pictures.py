"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100, read without pickle and without unpacking archives.

CIFAR comes from the official binary archives, or from prepared copies: lossless WebP strips of 500 pictures,
labels, and the names of the classes.
"""

import gzip
import struct
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from experiments.data.dataset import Dataset, Split
from experiments.data.files import Original, damaged, find, obtain, read_arrays, require_digest

Scale = Literal["signed", "unit", "standard", "centred"]
Raw = tuple[
    tuple[Tensor, Tensor], tuple[Tensor, Tensor]
]  # (pictures as bytes, labels), train and test

# the mirror that torchvision uses; the first publisher no longer serves the files
MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
# sha256 computed from files whose md5 are the published ones
MNIST_SHA256 = (
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
FASHION_SHA256 = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)
STRIP = 500  # pictures per strip


@dataclass(frozen=True)
class Cifar:
    """One of the two sets: its official archive, and a prepared copy.

    Attributes:
        archive: as published at https://www.cs.toronto.edu/~kriz/cifar.html, with its md5 from there.
        label_bytes: labels in front of the pixels of a picture in the archive, of which the last counts.
        train: files of the archive with training pictures.
        test: the file with test pictures.
        names: the file with the names of the classes.
        prepared: `files.digest` of the arrays of the prepared copy.
        note: what a user of the prepared copy should know.
    """

    archive: Original
    label_bytes: int
    train: tuple[str, ...]
    test: str
    names: str
    prepared: str
    note: str = ""

    @property
    def folder(self) -> str:
        """The folder of its files, which is also the name of the set."""
        return self.archive.path.partition("/")[0]

    @property
    def prepared_files(self) -> tuple[str, ...]:
        """Labels, names, strips of training pictures, strips of test pictures."""
        names = ["labels.npz", "class_names.txt"]
        names += [
            f"{part}-{i:03}.webp" for part, n in (("train", 100), ("test", 20)) for i in range(n)
        ]
        return tuple(f"{self.folder}/{name}" for name in names)


CIFAR10 = Cifar(
    Original(
        "cifar-10/cifar-10-binary.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "md5:c32a1d4ab5d03f1284b67883e8d87530",
    ),
    label_bytes=1,
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test="test_batch.bin",
    names="batches.meta.txt",
    prepared="7083c88acf36d19273620f58b3b48653a8f987a0ad9431603fd21d922ee22469",
)
CIFAR100 = Cifar(
    Original(
        "cifar-100/cifar-100-binary.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "md5:03b5dce01913d631647c71ecec9e9cb8",
    ),
    label_bytes=2,
    train=("train.bin",),
    test="test.bin",
    names="fine_label_names.txt",
    prepared="d90413cb54ee05771f919a35725f20e7e1667147518699d028b2dceef31663d4",
    note="the prepared copy, whose pictures are in another order than in the official archive: other "
    "pictures validate",
)


def mnist(*, scale: Scale = "signed", flat: bool = True, valid: int = 10_000) -> Dataset:
    """Handwritten digits of 28 x 28 pixels: 50,000 to train, 10,000 to validate, 10,000 to test.

    Args:
        scale: "signed" pixels in [-1, 1]; "unit" in [0, 1]; "standard" by mean and standard
            deviation of the training part; "centred" in [0, 1] minus its mean picture.
        flat: inputs of shape (N, 784); else (N, 1, 28, 28).
        valid: how many of the last training pictures are the validation part.

    Examples:
        >>> mnist(scale="unit", flat=False).train  # doctest: +SKIP
        Split(x: float32 (50000, 1, 28, 28), y: int64 (50000,))
    """
    classes = tuple(map(str, range(10)))
    return picture_set("mnist", read_mnist(), classes, scale=scale, valid=valid, flat=flat)


def fashion_mnist(*, scale: Scale = "signed", flat: bool = True, valid: int = 10_000) -> Dataset:
    """Pieces of clothing, 28 x 28 pixels, in the sizes and with the options of `mnist`."""
    raw = _read_idx("fashion-mnist", FASHION_URL, FASHION_SHA256)
    return picture_set("fashion-mnist", raw, FASHION_CLASSES, scale=scale, valid=valid, flat=flat)


def cifar10(*, scale: Scale = "unit", valid: int = 10_000) -> Dataset:
    """Photographs of 10 kinds of things, 32 x 32: 40,000 to train, 10,000 to validate, 10,000 to test.

    Args:
        scale: "unit" pixels in [0, 1]; "standard" by mean and standard deviation of each channel
            over the training part; "centred" in [0, 1] minus its mean picture; "signed" in [-1, 1].
        valid: how many of the last training pictures are the validation part.

    Examples:
        >>> cifar10().train  # doctest: +SKIP
        Split(x: float32 (40000, 3, 32, 32), y: int64 (40000,))
    """
    return _cifar(CIFAR10, scale, valid)


def cifar100(*, scale: Scale = "unit", valid: int = 10_000) -> Dataset:
    """Photographs of 100 kinds of things, in the sizes and with the options of `cifar10`.

    Labels are the 100 fine classes. `note` of the data set says so if the pictures are not in the official
    order.
    """
    return _cifar(CIFAR100, scale, valid)


def read_mnist() -> Raw:
    """The pictures of MNIST as published."""
    return _read_idx("mnist", MNIST_URL, MNIST_SHA256)


def _read_idx(name: str, url: str, sums: tuple[str, ...]) -> Raw:
    paths = [
        obtain(Original(f"{name}/{file}", url + file, f"sha256:{total}"))
        for file, total in zip(IDX_FILES, sums, strict=True)
    ]
    x, y, test_x, test_y = (_parse_idx(gzip.decompress(path.read_bytes())) for path in paths)
    return (x.unsqueeze(1), y), (test_x.unsqueeze(1), test_y)


def _parse_idx(content: bytes) -> Tensor:
    """The array of an idx file of bytes: type and number of dimensions, sizes, values."""
    dims = content[3]
    shape = struct.unpack_from(f">{dims}I", content, 4)
    return torch.from_numpy(
        np.frombuffer(content, np.uint8, offset=4 + 4 * dims).reshape(shape).copy()
    )


def _cifar(source: Cifar, scale: Scale, valid: int) -> Dataset:
    prepared = find(*source.prepared_files)
    raw, classes = _read_archive(source) if prepared is None else _read_strips(source, prepared)
    note = "" if prepared is None else source.note
    return picture_set(source.folder, raw, classes, scale=scale, valid=valid, flat=False, note=note)


def _read_archive(source: Cifar) -> tuple[Raw, tuple[str, ...]]:
    """Pictures and names of classes, straight out of the archive in one pass."""
    wanted = (*source.train, source.test, source.names)
    found: dict[str, bytes] = {}
    with tarfile.open(obtain(source.archive), "r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None and (name := Path(member.name).name) in wanted:
                found[name] = file.read()

    def part(*names: str) -> tuple[Tensor, Tensor]:
        content = bytearray(b"".join(found[name] for name in names))
        rows = torch.frombuffer(content, dtype=torch.uint8).view(-1, source.label_bytes + 3072)
        pixels, labels = rows[:, source.label_bytes :], rows[:, source.label_bytes - 1]
        return pixels.reshape(-1, 3, 32, 32), labels.clone()

    return (part(*source.train), part(source.test)), tuple(found[source.names].decode().split())


def _read_strips(source: Cifar, paths: list[Path]) -> tuple[Raw, tuple[str, ...]]:
    """Pictures and names of classes of the prepared copy, checked by a digest of all of them."""
    labels, names, *strips = paths
    url = source.archive.url
    arrays = read_arrays(labels, ("train_labels", "test_labels"), url)
    pixels = np.concatenate([_decode(strip, url) for strip in strips])
    split = 100 * STRIP
    classes = tuple(names.read_text(encoding="utf-8").split())
    arrays |= {"train": pixels[:split], "test": pixels[split:], "classes": np.array(classes)}
    require_digest(arrays, source.prepared, labels.parent, url)
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
    name: str,
    raw: Raw,
    classes: tuple[str, ...],
    *,
    scale: Scale,
    valid: int,
    flat: bool,
    note: str = "",
) -> Dataset:
    """The data set of pictures with bytes as pixels, the last `valid` of train as validation.

    Args:
        name: of the set.
        raw: pictures (N, C, H, W) as uint8 and labels (N,), of train and test.
        classes: names of the labels.
        scale: "unit" pixels in [0, 1]; "signed" in [-1, 1]; "standard" minus mean, divided by the
            standard deviation, of each channel; "centred" in [0, 1] minus the mean of each pixel.
        valid: number of validation pictures.
        flat: one vector per picture instead of (C, H, W).
        note: of the data set.
    """
    (pixels, labels), test = raw
    if not 0 <= valid < len(pixels):
        raise ValueError(
            f"valid={valid} must be below the {len(pixels)} training pictures of {name}"
        )
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
        note=note,
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
        mean, std = channel_statistics(train)
        return 255 * std, mean / std
    raise ValueError(f"scale={scale!r} must be one of {', '.join(map(repr, get_args(Scale)))}")


def channel_statistics(pictures: Tensor) -> tuple[Tensor, Tensor]:
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
    std[std == 0] = 255.0  # a channel of one colour is only centred
    return mean.view(-1, 1, 1) / 255, std.view(-1, 1, 1) / 255
