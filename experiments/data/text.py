"""IMDB film reviews (Maas et al. 2011) as sequences of word ids, numbered as Keras does.

The reviews come from their authors' archive and the ranks of words from Keras' word index, which
is JSON; the arrays that Keras publishes are pickled and not read. Words are ranked by frequency in
the training reviews. Which of two equally frequent words comes first is Keras' choice and cannot
be worked out again from the reviews, hence the index.
"""

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.data.dataset import Dataset, Split
from experiments.data.files import obtain, prepared

START, UNKNOWN, FIRST = 1, 2, 3  # ids: 0 pads, a word of rank r is r + FIRST
VOCABULARY = 20_000
PREPARED = "imdb/imdb.npz"
ARRAYS = tuple(
    f"{part}_{of}" for part in ("train", "test") for of in ("tokens", "offsets", "labels")
)
REVIEWS, WORDS = "imdb/aclImdb_v1.tar.gz", "imdb/imdb_word_index.json"
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

    Args:
        vocabulary: number of ids, at most 20,000; the size of an embedding.
        length: of a sequence.
        valid: how many of the last training reviews are the validation part.
    """
    if not FIRST < vocabulary <= VOCABULARY or length < 1:
        raise ValueError(
            f"imdb: vocabulary must be from {FIRST + 1} to {VOCABULARY} and length at least 1, "
            f"got {vocabulary} and {length}"
        )
    # word ids of all reviews one after another, where each begins, labels; for train and test
    arrays = prepared(PREPARED, ARRAYS, REVIEWS, _convert)
    train, test = (_split(arrays, part, vocabulary, length) for part in ("train", "test"))
    if not 0 <= valid < len(train):
        raise ValueError(
            f"imdb: valid must be below the {len(train)} training reviews, got {valid}"
        )
    fit = len(train) - valid
    held_out = Split(train.x[fit:], train.y[fit:])
    return Dataset("imdb", train.subset(fit), held_out, test, classes=("negative", "positive"))


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


def _convert(reviews: Path) -> dict[str, Any]:
    """The arrays, from the files as published."""
    ranks = json.loads(obtain(WORDS).read_text(encoding="utf-8"))
    ids = {
        word: rank + FIRST if rank + FIRST < VOCABULARY else UNKNOWN for word, rank in ranks.items()
    }
    texts: dict[str, dict[tuple[int, int], list[int]]] = {"train": {}, "test": {}}
    with tarfile.open(reviews, "r|gz") as archive:
        for member in archive:
            match = _REVIEW.fullmatch(member.name.removeprefix("./"))
            file = archive.extractfile(member) if match else None
            if match and file is not None:
                part, kind, number = match.groups()
                # a word of no training review is left out, as Keras does
                known = (ids[word] for word in words_of(file.read().decode()) if word in ids)
                texts[part][int(kind == "pos"), int(number)] = [START, *known]
    rng = np.random.default_rng(0)  # one shuffle after the other: train before test
    arrays: dict[str, Any] = {}
    for part, tokens in texts.items():
        keys = sorted(tokens)
        order = [keys[i] for i in rng.permutation(len(keys))]
        lengths = [0, *(len(tokens[key]) for key in order)]
        arrays[f"{part}_tokens"] = np.array([t for key in order for t in tokens[key]], "<u2")
        arrays[f"{part}_offsets"] = np.cumsum(lengths).astype("<i4")
        arrays[f"{part}_labels"] = np.array([label for label, _ in order], "u1")
    return arrays
