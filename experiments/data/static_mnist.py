"""MNIST in black and white, fixed once and for all: the standard test of auto-encoders.

The pictures of the literature were drawn once, each pixel white with its brightness as probability, and
published as three text files by Hugo Larochelle. Where these are, they are used. Where they are not,
the pixels are drawn anew from MNIST by a seed that is stored here: other pictures of the same
distribution, the same ones on every machine. `Dataset.note` says which they are.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.data.files import DataError, damaged, find
from experiments.data.pictures import CLASSES, Raw, Read, read_idx

URL = "http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/"
# rows, and the md5 of the first ten pictures as bytes 0 and 1
PARTS = {
    "train": (50_000, "0922fefc9a9d097e3b086b89107fafce"),
    "valid": (10_000, "65e8099613162b3110a7618037011617"),
    "test": (10_000, "0fa539ed8cb008880a61be77f744f06a"),
}
ORIGINALS = tuple(f"static-mnist/binarized_mnist_{part}.amat" for part in PARTS)
SEED = 20190903
# sha256 of the pixels that the seed gives, as bytes 0 and 1, training pictures first
SHA256 = "2d988c5dc751b417146212d18bc0023dd6da71de47ebda258c4ae49486975c5a"
OURS = (
    "drawn from MNIST by a seed stored in kasuri, since the published files are not on this machine: "
    "scores are of other pixels than those in the literature"
)
THEIRS = "the published binarised files"


def read_static_mnist(name: str) -> Read:
    """The published pictures, which come without labels (y is 0), or those of the stored seed.

    Put binarized_mnist_train.amat, ..._valid.amat and ..._test.amat into the folder static-mnist of
    KASURI_DATA or of the cache to have the published ones.
    """
    published = find(*ORIGINALS)
    if published is None:
        raw, classes, note = binarised(read_idx("mnist")), CLASSES["mnist"], OURS
        pixels = b"".join(pictures.numpy().tobytes() for pictures, _ in raw)
        drawn = hashlib.sha256(pixels).hexdigest()
        if drawn != SHA256:
            raise DataError(
                f"{name}: this version of torch draws other pictures from the seed {SEED} (sha256 "
                f"{drawn}, expected {SHA256}). Put the published files into the folder static-mnist ({URL})"
            )
    else:
        parts = zip(published, PARTS.values(), strict=True)
        train, held_out, test = (_parse(path, *expected) for path, expected in parts)
        train = torch.cat([train, held_out])
        raw = (train, torch.zeros(len(train))), (test, torch.zeros(len(test)))
        classes, note = ("unlabelled",), THEIRS
    (x, y), (test_x, test_y) = raw
    return ((255 * x, y), (255 * test_x, test_y)), classes, note


def binarised(raw: Raw) -> Raw:
    """Pictures whose pixels are 1 with the probability of their brightness, by the stored seed."""
    generator = torch.Generator().manual_seed(SEED)
    parts = []
    for pictures, labels in raw:
        chance = torch.rand(pictures.shape, generator=generator)
        parts.append(((pictures.float() / 255 > chance).to(torch.uint8), labels))
    return parts[0], parts[1]


def _parse(path: Path, rows: int, md5: str) -> Tensor:
    """The pictures of a text file with a line of 784 zeros and ones for each."""
    digits = path.read_bytes().translate(None, b" \t\r\n")
    pixels = np.frombuffer(digits, np.uint8) - ord("0")
    first = hashlib.md5(pixels[:7840].tobytes(), usedforsecurity=False).hexdigest()
    if len(digits) != rows * 784 or digits.strip(b"01") or first != md5:
        reason = f"it must hold {rows} x 784 zeros and ones; md5 of ten pictures is {first}, expected {md5}"
        raise damaged(path, reason, URL + path.name)
    return torch.from_numpy(pixels).view(rows, 1, 28, 28)
