"""CIFAR-10 and CIFAR-100, read from the official binary archives (no pickle, nothing unpacked).

For CIFAR-10 a prepared copy does as well: lossless WebP strips of 500 pictures and their labels.
"""

import hashlib
import tarfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from experiments.data.dataset import Dataset
from experiments.data.files import Original, damaged, find_together, need, obtain, unchecked_arrays
from experiments.data.scaling import Scale, picture_set

PIXELS = 3 * 32 * 32
STRIP = 500  # pictures per strip
BATCH = 10_000  # rows per file of CIFAR-10

# md5 of the archives: published at https://www.cs.toronto.edu/~kriz/cifar.html
CIFAR10 = Original(
    "cifar-10",
    "cifar-10/cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
    "the prepared copy (labels.npz, train-000.webp to train-099.webp, test-000.webp to test-019.webp)",
)
CIFAR100 = Original(
    "cifar-100",
    "cifar-100/cifar-100-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    "md5:03b5dce01913d631647c71ecec9e9cb8",
)
# md5 of the official files inside; the prepared copy, laid out like them, gives the same
CIFAR10_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
CIFAR100_SIZES = {"train.bin": 50_000, "test.bin": 10_000}
CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
PREPARED = (
    "cifar-10/labels.npz",
    *(f"cifar-10/train-{i:03}.webp" for i in range(100)),
    *(f"cifar-10/test-{i:03}.webp" for i in range(20)),
)
Part = tuple[Tensor, Tensor]


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
    train, test = read_cifar10()
    return picture_set(
        "cifar-10", train, test, classes=CIFAR10_CLASSES, scale=scale, valid=valid, flat=False
    )


def cifar100(*, scale: Scale = "unit", valid: int = 10_000) -> Dataset:
    """Photographs of 100 kinds of things, in the sizes and with the options of `cifar10`.

    Labels are the 100 fine classes.
    """
    train, test, classes = read_cifar100()
    return picture_set(
        "cifar-100", train, test, classes=classes, scale=scale, valid=valid, flat=False
    )


def read_cifar10() -> tuple[Part, Part]:
    """(pictures as bytes, labels) of train and test, as published."""
    prepared = find_together(PREPARED)
    batches = _strips(prepared) if prepared is not None else _archive10(obtain(CIFAR10))
    *train, test = (_pictures(content, labels=1) for content in batches)
    x, y = (torch.cat(parts) for parts in zip(*train, strict=True))
    return (x, y), test


def read_cifar100() -> tuple[Part, Part, tuple[str, ...]]:
    """(pictures as bytes, fine labels) of train and test, and the names of the classes."""
    path = obtain(CIFAR100)
    sizes = {name: rows * (2 + PIXELS) for name, rows in CIFAR100_SIZES.items()}
    found = _members(path, (*sizes, "fine_label_names.txt"), CIFAR100.url)
    for name, size in sizes.items():
        if len(found[name]) != size:
            raise damaged(path, f"{name} has {len(found[name])} bytes, not {size}", CIFAR100.url)
    classes = tuple(found["fine_label_names.txt"].decode().split())
    return (
        _pictures(found["train.bin"], labels=2),
        _pictures(found["test.bin"], labels=2),
        classes,
    )


def _archive10(path: Path) -> list[bytearray]:
    found = _members(path, tuple(CIFAR10_MD5), CIFAR10.url)
    for name, expected in CIFAR10_MD5.items():
        md5 = _md5(found[name])
        if md5 != expected:
            raise damaged(path, f"the md5 of {name} in it is {md5}, not {expected}", CIFAR10.url)
    return [found[name] for name in CIFAR10_MD5]


def _members(path: Path, names: tuple[str, ...], url: str) -> Mapping[str, bytearray]:
    """Contents of files of an archive, read straight out of it in one pass."""
    found = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                file = archive.extractfile(member) if name in names else None
                if file is not None:
                    found[name] = bytearray(file.read())
    except (tarfile.TarError, OSError, EOFError) as error:
        raise damaged(path, f"it cannot be read: {error}", url) from error
    if len(found) < len(names):
        raise damaged(path, f"it lacks {', '.join(sorted(set(names) - set(found)))}", url)
    return found


def _strips(paths: list[Path]) -> list[bytearray]:
    """The files of the binary version, put together again from strips and checked by their md5.

    This is stronger than checksums of the strips: it says that the pictures are the published ones.
    """
    names, sums = ("train_labels", "test_labels"), f"md5 {', '.join(CIFAR10_MD5.values())}"
    arrays = unchecked_arrays(paths[0], names, sums, CIFAR10.url)
    found = [(arrays[name].dtype.str, arrays[name].shape) for name in names]
    if found != [("|u1", (5 * BATCH,)), ("|u1", (BATCH,))]:
        raise damaged(paths[0], f"its labels are of type and shape {found}", CIFAR10.url)
    rows = torch.cat([torch.from_numpy(arrays[name]) for name in names]).split(BATCH)
    per_batch = BATCH // STRIP
    batches = []
    for i, (name, expected) in enumerate(CIFAR10_MD5.items()):
        strips = paths[1 + i * per_batch : 1 + (i + 1) * per_batch]
        content = bytearray(BATCH * (1 + PIXELS))
        batch = torch.frombuffer(content, dtype=torch.uint8).view(BATCH, 1 + PIXELS)
        batch[:, 0] = rows[i]
        for j, strip in enumerate(strips):
            batch[j * STRIP : (j + 1) * STRIP, 1:] = _decode(strip)
        md5 = _md5(content)
        if md5 != expected:
            which = f"{strips[0].name} to {strips[-1].name} or {paths[0].name}"
            reason = (
                f"one of {which} is wrong: together they give {name} with md5 {md5}, not {expected}"
            )
            raise damaged(strips[0].parent, reason, CIFAR10.url)
        batches.append(content)
    return batches


def _decode(path: Path) -> Tensor:
    """Pixels of a strip, (500, 3072), colour planes one after the other."""
    image = need("PIL.Image", "reading the prepared copy of cifar-10")
    try:
        with image.open(path) as strip:
            pixels = bytearray(strip.convert("RGB").tobytes())
        x = torch.frombuffer(pixels, dtype=torch.uint8).view(STRIP, 32, 32, 3)
    except Exception as error:  # so can a damaged picture
        reason = f"it cannot be read ({error}); its md5 is {_md5(path.read_bytes())}"
        raise damaged(path, reason, CIFAR10.url) from error
    return x.permute(0, 3, 1, 2).reshape(STRIP, PIXELS)


def _pictures(content: bytearray, labels: int) -> Part:
    """(pictures, last label) of rows of so many labels and 3072 pixels."""
    rows = torch.frombuffer(content, dtype=torch.uint8).view(-1, labels + PIXELS)
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1].clone()


def _md5(content: bytes | bytearray) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
