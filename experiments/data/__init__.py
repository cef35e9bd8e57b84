"""Data sets as tensors in memory, and batches of them.

`load("mnist")` gives a `Dataset` with train, valid and test part. Files come from the folder named
by the environment variable KASURI_DATA, else from a cache, else from their publishers, and are
checked against checksums at every load.
"""

from experiments.data.binarised import static_mnist
from experiments.data.bundled import breast_cancer, diabetes, digits, wine
from experiments.data.catalog import fetch, load, names, status
from experiments.data.cifar import cifar10, cifar100
from experiments.data.dataset import Dataset, Split
from experiments.data.files import DataError
from experiments.data.idx import fashion_mnist, mnist
from experiments.data.reviews import imdb
from experiments.data.tables import uci
from kasuri.training.augment import compose, crop, flip
from kasuri.training.batches import Batches

__all__ = [
    "Batches",
    "DataError",
    "Dataset",
    "Split",
    "breast_cancer",
    "cifar10",
    "cifar100",
    "compose",
    "crop",
    "diabetes",
    "digits",
    "fashion_mnist",
    "fetch",
    "flip",
    "imdb",
    "load",
    "mnist",
    "names",
    "static_mnist",
    "status",
    "uci",
    "wine",
]
