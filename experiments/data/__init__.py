"""Data sets as tensors in memory.

`load("mnist")` gives a `Dataset` with train, valid and test part. Files come from the folder named
by the environment variable KASURI_DATA, else from a cache, else from their publishers, and are
checked against checksums at every load.
"""

from experiments.data.catalog import load, status
from experiments.data.dataset import Dataset, Split
from experiments.data.files import DataError

__all__ = ["DataError", "Dataset", "Split", "load", "status"]
