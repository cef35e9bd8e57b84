"""Data sets as tensors in memory, and batches of them.

`load("mnist")` gives a `Dataset` with train, valid and test part. Files come from the folder named
by the environment variable WEFT_DATA, else from a cache, else from their publishers, and are
checked against checksums at every load.
"""

from weft.data.augment import compose, crop, flip
from weft.data.batches import Batches
from weft.data.binarised import static_mnist
from weft.data.bundled import breast_cancer, diabetes, digits, wine
from weft.data.catalog import fetch, load, names, status
from weft.data.cifar import cifar10, cifar100
from weft.data.dataset import Dataset, Split
from weft.data.files import DataError
from weft.data.idx import fashion_mnist, mnist
from weft.data.reviews import imdb
from weft.data.tables import uci

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
