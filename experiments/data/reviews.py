"""IMDB film reviews (Maas et al. 2011) as sequences of word ids, numbered as Keras does.

The reviews come from their authors' archive and the ranks of words from Keras' word index, which
is JSON; the arrays that Keras publishes are pickled and not read. Words are ranked by frequency in
the training reviews. Which of two equally frequent words comes first is Keras' choice and cannot
be worked out again from the reviews, hence the index.
"""

import contextlib
import json
import os
import re
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.data.dataset import Dataset, Split
from experiments.data.files import (
    Original,
    cache_folder,
    damaged,
    find,
    need,
    obtain,
    read_arrays,
    require_digest,
)

START, UNKNOWN, FIRST = 1, 2, 3  # ids: 0 pads, a word of rank r is r + FIRST
VOCABULARY = 20_000
PREPARED = "imdb/imdb.npz"
ARRAYS = tuple(
    f"{part}_{of}" for part in ("train", "test") for of in ("tokens", "offsets", "labels")
)
# files.digest of the arrays above, computed from the prepared copy; that one was compared with
# Keras' file in mean lengths and first reviews
SHA256 = "4c0c21d92ee1f3f91b07b153f3b054e224d29d14054e77bf82492e760e0e6b34"
# md5 as in torchtext.datasets.imdb
REVIEWS = Original(
    "imdb",
    "imdb/aclImdb_v1.tar.gz",
    "http://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    "md5:7c2ac02c03563afcf9b574c7e56c153a",
    "imdb.npz, the prepared copy",
)
# md5 as in keras.datasets.imdb.get_word_index
WORDS = Original(
    "imdb",
    "imdb/imdb_word_index.json",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/imdb_word_index.json",
    "md5:bfafd718b763782e994055a2d397834f",
    "imdb.npz, the prepared copy",
)
_REVIEW = re.compile(r"aclImdb/(train|test)/(neg|pos)/(\d+)_\d+\.txt")
_PUNCTUATION = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n'
_CLEAN = str.maketrans(  # capitals beyond A to Z stay, as in the numbering of Keras
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + _PUNCTUATION,
    "abcdefghijklmnopqrstuvwxyz" + " " * len(_PUNCTUATION),
)


def imdb(vocabulary: int = VOCABULARY, length: int = 80, valid: int = 5_000) -> Dataset:
    """Film reviews, negative or positive: 20,000 to train, 5,000 to validate, 25,000 to test.

    Inputs are the last `length` words of a review as ids, zeros in front of a shorter one: 1 starts
    a review, 2 is a word outside the vocabulary, 4 the most frequent word, and so on. The order of
    the reviews is a fixed shuffle, not that of Keras.

    The first load after a download reads 100,000 small files, which takes some ten seconds; the
    result is kept in the cache.

    Args:
        vocabulary: number of ids, at most 20,000; the size of an embedding.
        length: of a sequence.
        valid: how many of the last training reviews are the validation part.

    Examples:
        >>> imdb(vocabulary=5000, length=40).train  # doctest: +SKIP
        Split(x: int64 (20000, 40), y: int64 (20000,))
    """
    if not FIRST < vocabulary <= VOCABULARY or length < 1:
        raise ValueError(
            f"imdb(vocabulary={vocabulary}, length={length}): vocabulary from {FIRST + 1} to "
            f"{VOCABULARY}, length at least 1"
        )
    arrays = read_imdb()
    train, test = (_split(arrays, part, vocabulary, length) for part in ("train", "test"))
    if not 0 <= valid < len(train):
        raise ValueError(f"imdb(valid={valid}): there are {len(train)} training reviews in all")
    fit = len(train) - valid
    return Dataset(
        "imdb",
        train.subset(fit),
        Split(train.x[fit:], train.y[fit:]),
        test,
        classes=("negative", "positive"),
    )


def read_imdb() -> dict[str, Any]:
    """Word ids of all reviews one after another, where each begins, labels; for train and test."""
    path = find(PREPARED)
    if path is not None:
        return read_arrays(path, ARRAYS, SHA256, REVIEWS.url)
    reviews = obtain(REVIEWS)
    arrays = _convert(reviews, obtain(WORDS))
    require_digest(arrays, SHA256, reviews, REVIEWS.url)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
        _keep(arrays, cache_folder() / PREPARED)
    return arrays


def _split(arrays: dict[str, Any], part: str, vocabulary: int, length: int) -> Split:
    tokens, offsets, labels = (
        torch.from_numpy(arrays[f"{part}_{of}"].astype("int64"))
        for of in ("tokens", "offsets", "labels")
    )
    x = last_words(tokens, offsets, length)
    x[x >= vocabulary] = UNKNOWN
    return Split(x, labels)


def last_words(tokens: Tensor, offsets: Tensor, length: int) -> Tensor:
    """The last `length` tokens of each review, (N, length), zeros in front of a shorter one.

    Examples:
        >>> last_words(torch.tensor([1, 7, 8, 9, 1, 5]), torch.tensor([0, 4, 6]), 3)
        tensor([[7, 8, 9],
                [0, 1, 5]])
    """
    places = offsets[1:, None] - length + torch.arange(length)
    inside = places >= offsets[:-1, None]
    return torch.where(inside, tokens[places.clamp_min(0)], 0)


def words_of(text: str) -> list[str]:
    """The words of a review: punctuation but the apostrophe becomes space, A to Z lower case.

    Examples:
        >>> words_of("Don't go, it's BAD.<br />Really")
        ["don't", 'go', "it's", 'bad', 'br', 'really']
    """
    return [word for word in text.translate(_CLEAN).split(" ") if word]


def _convert(reviews: Path, index: Path) -> dict[str, Any]:
    """The arrays, from the files as published."""
    np = need("numpy", "datasets.load('imdb')")
    ids = _ids(index)
    found: dict[str, dict[tuple[int, int], list[int]]] = {"train": {}, "test": {}}
    try:
        with tarfile.open(reviews, "r|gz") as archive:
            for member in archive:
                match = _REVIEW.fullmatch(member.name.removeprefix("./"))
                file = archive.extractfile(member) if match else None
                if match and file is not None:
                    part, kind, number = match.groups()
                    words = words_of(file.read().decode())
                    # a word of no training review is left out, as Keras does
                    tokens = [START, *(ids[word] for word in words if word in ids)]
                    found[part][int(kind == "pos"), int(number)] = tokens
    except (tarfile.TarError, OSError, EOFError, UnicodeDecodeError) as error:
        raise damaged(reviews, f"it cannot be read: {error}", REVIEWS.url) from error
    rng = np.random.default_rng(0)  # one shuffle after the other: train before test
    arrays: dict[str, Any] = {}
    for part, texts in found.items():
        keys = sorted(texts)
        order = [keys[i] for i in rng.permutation(len(keys))]
        lengths = [0, *(len(texts[key]) for key in order)]
        arrays[f"{part}_tokens"] = np.array([t for key in order for t in texts[key]], "<u2")
        arrays[f"{part}_offsets"] = np.cumsum(lengths).astype("<i4")
        arrays[f"{part}_labels"] = np.array([label for label, _ in order], "u1")
    return arrays


def _ids(path: Path) -> dict[str, int]:
    """The id of every word that occurs in a training review; that of rare ones is UNKNOWN."""
    ranks = json.loads(path.read_text(encoding="utf-8"))
    return {
        word: rank + FIRST if rank + FIRST < VOCABULARY else UNKNOWN for word, rank in ranks.items()
    }


def _keep(arrays: dict[str, Any], path: Path) -> None:
    """Write beside the target, then rename: a crash leaves no half file behind."""
    np = need("numpy", "datasets.load('imdb')")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".npz")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
