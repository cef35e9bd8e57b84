"""MNIST in black and white, fixed once and for all: the standard test of auto-encoders.

The pictures of the literature were drawn once, each pixel white with its brightness as probability, and
published as three text files by Hugo Larochelle. Where these are, they are used. Where they are not,
the pixels are drawn anew from MNIST by a seed that is stored here: other pictures of the same
distribution, the same ones on every machine. `Dataset.note` says which they are.
"""

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from experiments.data.dataset import Dataset, Split
from experiments.data.files import DataError, damaged, find_together
from experiments.data.idx import Raw, read_mnist

URL = "http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/"
# rows, and the md5 of the first ten pictures as bytes 0 and 1
PARTS = {
    "train": (50_000, "0922fefc9a9d097e3b086b89107fafce"),
    "valid": (10_000, "65e8099613162b3110a7618037011617"),
    "test": (10_000, "0fa539ed8cb008880a61be77f744f06a"),
}
ORIGINALS = tuple(f"static-mnist/binarized_mnist_{part}.amat" for part in PARTS)
SEED = 20190903
# sha256 of all pixels as bytes 0 and 1, training pictures first
SHA256 = "2d988c5dc751b417146212d18bc0023dd6da71de47ebda258c4ae49486975c5a"
PIXELS = 28 * 28
OURS = (
    "drawn from MNIST by a seed stored in kasuri, since the published files are not on this machine: "
    "scores are of other pixels than those in the literature"
)
THEIRS = "the published binarised files"


def static_mnist(*, flat: bool = True, valid: int = 10_000) -> Dataset:
    """Handwritten digits in black and white, pixels 0 or 1, fixed: 50,000, 10,000 and 10,000.

    Put binarized_mnist_train.amat, ..._valid.amat and ..._test.amat into the folder static-mnist of
    KASURI_DATA or of the cache to have the published pixels, which come without labels (y is 0).
    Otherwise pixels are drawn from MNIST by a stored seed. `note` of the data set says which.

    Args:
        flat: inputs of shape (N, 784); else (N, 1, 28, 28).
        valid: how many of the last training pictures are the validation part.

    Examples:
        >>> static_mnist().train  # doctest: +SKIP
        Split(x: float32 (50000, 784), y: int64 (50000,))
    """
    (train, labels), (test, test_labels), note = read_static_mnist()
    if not 0 <= valid < len(train):
        raise ValueError(f"valid={valid}: static-mnist has {len(train)} training pictures in all")

    def part(x: Tensor, y: Tensor) -> Split:
        return Split(x.float() if flat else x.float().unflatten(1, (1, 28, 28)), y.long())

    fit = len(train) - valid
    return Dataset(
        "static-mnist",
        part(train[:fit], labels[:fit]),
        part(train[fit:], labels[fit:]),
        part(test, test_labels),
        classes=tuple(map(str, range(10))) if note == OURS else ("unlabelled",),
        pictures=(1, 28, 28),
        pixel_range=(0.0, 1.0),
        note=note,
    )


def read_static_mnist() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], str]:
    """(pixels, labels) of train and test as bytes (N, 784), and what they are."""
    paths = find_together(ORIGINALS)
    if paths is None:
        made = binarised(read_mnist())
        if (found := digest(made)) != SHA256:
            raise DataError(
                f"static-mnist: this version of torch draws other numbers from the seed {SEED} (sha256 "
                f"{found}, expected {SHA256}), so these would not be the fixed pictures; the published "
                f"files in the folder {Path(ORIGINALS[0]).parent} do not depend on it (origin: {URL})"
            )
        return (*made, OURS)
    train, valid, test = (
        _parse(path, *told) for path, told in zip(paths, PARTS.values(), strict=True)
    )
    joined = torch.cat([train, valid])
    return (joined, torch.zeros(len(joined))), (test, torch.zeros(len(test))), THEIRS


def binarised(raw: Raw) -> Raw:
    """Pictures whose pixels are 1 with the probability of their brightness, by the stored seed."""
    generator = torch.Generator().manual_seed(SEED)
    parts = []
    for pictures, labels in raw:
        bright = pictures.flatten(1)
        chance = torch.rand(bright.shape, generator=generator)
        parts.append(((bright.float() / 255 > chance).to(torch.uint8), labels))
    return parts[0], parts[1]


def digest(parts: Raw) -> str:
    """sha256 of the pixels of both parts."""
    total = hashlib.sha256()
    for pixels, _ in parts:
        total.update(pixels.contiguous().numpy().data)
    return total.hexdigest()


def _parse(path: Path, rows: int, start: str) -> Tensor:
    """The pixels of a text file with a line of 784 zeros and ones for each picture."""
    url = URL + path.name
    digits = path.read_bytes().translate(None, b" \t\r\n")
    if len(digits) != rows * PIXELS or digits.strip(b"01"):
        raise damaged(path, f"it does not hold {rows} x {PIXELS} zeros and ones", url)
    pixels = torch.frombuffer(bytearray(digits), dtype=torch.uint8).sub_(ord("0"))
    first = bytes(pixels[: 10 * PIXELS].tolist())
    found = hashlib.md5(first, usedforsecurity=False).hexdigest()
    if found != start:
        raise damaged(path, f"its first ten pictures have the md5 {found}, expected {start}", url)
    return pixels.view(rows, PIXELS)
