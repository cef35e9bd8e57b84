"""MNIST and Fashion-MNIST: four idx files each."""

import gzip
import struct
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from experiments.data.dataset import Dataset
from experiments.data.files import Original, damaged, obtain
from experiments.data.scaling import Scale, picture_set

# the mirror that torchvision uses; the first publisher no longer serves the files
MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
FILES = (
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
Raw = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


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
    train, test = read_mnist()
    classes = tuple(map(str, range(10)))
    return picture_set("mnist", train, test, classes=classes, scale=scale, valid=valid, flat=flat)


def fashion_mnist(*, scale: Scale = "signed", flat: bool = True, valid: int = 10_000) -> Dataset:
    """Pieces of clothing, 28 x 28 pixels, in the sizes and with the options of `mnist`."""
    train, test = read_fashion_mnist()
    return picture_set(
        "fashion-mnist",
        train,
        test,
        classes=FASHION_CLASSES,
        scale=scale,
        valid=valid,
        flat=flat,
    )


def read_mnist() -> Raw:
    """(pictures as bytes, labels) of train and test, as published."""
    return _read(_originals("mnist", MNIST_URL, MNIST_SHA256))


def read_fashion_mnist() -> Raw:
    """(pictures as bytes, labels) of train and test, as published."""
    return _read(_originals("fashion-mnist", FASHION_URL, FASHION_SHA256))


def _originals(name: str, url: str, sums: tuple[str, ...]) -> list[Original]:
    return [
        Original(name, f"{name}/{file}", url + file, f"sha256:{total}")
        for file, total in zip(FILES, sums, strict=True)
    ]


def _read(originals: list[Original]) -> Raw:
    paths = [obtain(original) for original in originals]  # all checked before any is parsed
    images, labels, test_images, test_labels = (
        _parse(path, dims, original.url)
        for path, dims, original in zip(paths, (3, 1, 3, 1), originals, strict=True)
    )
    return (images.unsqueeze(1), labels), (test_images.unsqueeze(1), test_labels)


def _parse(path: Path, dims: int, url: str) -> Tensor:
    """The array of an idx file of bytes: magic number, one size per dimension, values."""
    content = bytearray(gzip.decompress(path.read_bytes()))
    head = 4 + 4 * dims
    if len(content) < head or content[:4] != bytes([0, 0, 8, dims]):
        raise damaged(path, f"it is no idx file of bytes with {dims} dimensions", url)
    shape = struct.unpack(f">{dims}I", content[4:head])
    if len(content) != head + prod(shape):
        raise damaged(path, f"{len(content) - head} bytes of values for the shape {shape}", url)
    return torch.frombuffer(content, dtype=torch.uint8, offset=head).view(shape)
