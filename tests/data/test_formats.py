"""Every set as its publishers offer it, in small and made up: layouts, checks, downloads."""

import gzip
import hashlib
import io
import json
import struct
import tarfile
import zipfile

import numpy as np
import pytest
import torch

from experiments import data as datasets
from experiments.data import DataError, pictures, tables, text
from experiments.data.files import DIGESTS, FILES, digest
from tests.data.conftest import put


def tar(members: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def md5(content: bytes) -> str:
    return "md5:" + hashlib.md5(content).hexdigest()


def test_mnist_is_downloaded_once_and_read(server, cache, monkeypatch):
    """Four idx files on the server: 20 + 5 pictures."""
    rng = np.random.default_rng(0)
    shapes = [(20, 28, 28), (20,), (5, 28, 28), (5,)]
    images, labels, test_images, test_labels = values = [
        rng.integers(0, 10, shape, dtype=np.uint8) for shape in shapes
    ]
    for file, array in zip(pictures.IDX_FILES, values, strict=True):
        head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        content = gzip.compress(head + array.tobytes())
        server.files[f"/m/{file}"] = content
        checksum = "sha256:" + hashlib.sha256(content).hexdigest()
        monkeypatch.setitem(FILES, f"mnist/{file}", (f"{server.url}m/{file}", checksum))
    for _ in range(2):
        data = datasets.load("mnist", valid=5, scale="unit", flat=False)
        assert len(server.asked) == 4
    assert np.allclose(data.train.x.numpy()[:, 0] * 255, images[:15], atol=1e-4)
    assert data.valid.y.tolist() == labels[15:].tolist()
    assert np.allclose(data.test.x.numpy()[:, 0] * 255, test_images, atol=1e-4)
    assert data.test.y.tolist() == test_labels.tolist()
    assert datasets.status()["mnist"] == str(cache / "mnist")


def cifar_archive(source: pictures.Cifar) -> tuple[dict[str, np.ndarray], bytes]:
    """Rows of the files of an archive, of 3, 4, ... pictures, and the archive in another order."""
    rows = {
        name: np.random.default_rng(i).integers(
            0, 10, (3 + i, source.label_bytes + 3072), dtype=np.uint8
        )
        for i, name in enumerate((*source.train, source.test))
    }
    members = {f"folder/{name}": value.tobytes() for name, value in reversed(rows.items())}
    names = "\n".join(f"class{i}" for i in range(100)) + "\n\n"
    return rows, tar({f"folder/{source.names}": names.encode(), "folder/readme": b"x"} | members)


@pytest.mark.parametrize("name", ["cifar-10", "cifar-100"])
def test_cifar_from_the_archive(name, folder, server, monkeypatch):
    source = pictures.CIFAR[name]
    rows, content = cifar_archive(source)
    server.files["/c.tar.gz"] = content
    monkeypatch.setitem(FILES, source.archive, (server.url + "c.tar.gz", md5(content)))
    data = datasets.load(name, valid=1)
    *train, test = rows.values()
    train = np.concatenate(train)
    labels, pixels = train[:, source.label_bytes - 1], train[:, source.label_bytes :]
    assert torch.cat([data.train.y, data.valid.y]).tolist() == labels.tolist(), "fine labels"
    x = torch.cat([data.train.x, data.valid.x]).numpy()
    assert np.allclose(x * 255, pixels.reshape(-1, 3, 32, 32), atol=1e-4)
    assert np.allclose(data.test.x.flatten(1).numpy() * 255, test[:, source.label_bytes :])
    assert data.classes == tuple(f"class{i}" for i in range(100))
    assert list(folder.rglob("*.bin")) == [], "nothing is unpacked"


def uci_archive(arrays: dict[str, np.ndarray], folder: str = "yacht") -> bytes:
    """The repository's archive with one table, as text files."""
    x, y = arrays["X"], arrays["y"]
    root, made = f"{tables.REPOSITORY}-{tables.COMMIT}/UCI_Datasets/{folder}/data/", io.BytesIO()

    def text(values: np.ndarray) -> str:
        rows = np.atleast_2d(values.T).T
        return "\n".join(" ".join(repr(v) for v in row) for row in rows.tolist()) + "\n"

    files = {
        "data": text(np.column_stack([y, x])),  # target first, to see that the columns are chosen
        "index_features": text(np.arange(1, x.shape[1] + 1)),
        "index_target": "0\n",
        "n_splits": f"{len(arrays['train_index'])}\n",
    }
    for part in ("train", "test"):
        for i, rows in enumerate(arrays[f"{part}_index"]):
            files[f"index_{part}_{i}"] = text(rows.astype(float))
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"{root}{name}.txt", content)
    return made.getvalue()


def uci_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    order = np.stack([rng.permutation(30) for _ in range(2)]).astype("<u2")
    return {
        "X": rng.normal(size=(30, 4)),
        "y": rng.normal(size=30),
        "train_index": order[:, :27],
        "test_index": order[:, 27:],
    }


def test_uci_from_the_archive(server, monkeypatch, cache):
    arrays = uci_arrays()
    server.files["/uci.zip"] = uci_archive(arrays)
    monkeypatch.setitem(FILES, tables.ARCHIVE, (server.url + "uci.zip", None))
    with pytest.raises(DataError, match="96d5650d8b"):
        datasets.load("uci/yacht")
    monkeypatch.setitem(DIGESTS, "uci/yacht.npz", digest(arrays))
    data = datasets.load("uci/yacht", split=1, valid=0.2)
    assert server.asked == ["/uci.zip"]
    assert [len(part) for part in (data.train, data.valid, data.test)] == [22, 5, 3]
    rows = arrays["train_index"][1]
    fit, y = rows[:22], arrays["y"]
    assert data.target_mean == pytest.approx(y[fit].mean())
    assert data.target_scale == pytest.approx(y[fit].std())
    expected = (arrays["X"][rows[22:]] - arrays["X"][fit].mean(0)) / arrays["X"][fit].std(0)
    assert np.allclose(data.valid.x.numpy(), expected, atol=1e-6)
    with pytest.raises(ValueError, match="from 0 to 1, got 2"):
        datasets.load("uci/yacht", split=2)
    (cache / tables.ARCHIVE).unlink()  # the second load needs the kept result only
    assert datasets.load("uci/yacht", split=1, valid=0.2).train.x.equal(data.train.x)


@pytest.mark.parametrize("content", [b"a captive portal", uci_archive(uci_arrays(), "other")])
def test_a_damaged_uci_archive_is_refused(folder, content):
    put(folder, tables.ARCHIVE, content)
    with pytest.raises(DataError, match="yacht"):
        datasets.load("uci/yacht")


TEXTS = {  # rank of words: the 1, film 2, don't 3, rare 19,997 (the first id out of vocabulary)
    "train/neg/2_1": "The film!",
    "train/neg/10_1": "DON'T",
    "train/pos/0_9": "the<br />film, the\tFilm\nrare",
    "test/neg/0_2": "never-seen the",
    "test/pos/0_8": "film É the",
}
IDS = {  # by (label, number): <br /> is a word of no training review here, so it is left out
    "train": {(0, 2): [1, 4, 5], (0, 10): [1, 6], (1, 0): [1, 4, 5, 4, 5, 2]},
    "test": {(0, 0): [1, 4], (1, 0): [1, 5, 4]},
}


@pytest.fixture
def tiny_imdb(monkeypatch, server):
    members = {f"aclImdb/{name}.txt": review.encode() for name, review in TEXTS.items()}
    noise = {"aclImdb/train/unsup/0_0.txt": b"the", "aclImdb/README": b"the"}
    content = tar(members | noise)
    index = json.dumps({"the": 1, "film": 2, "don't": 3, "rare": 19_997}).encode()
    server.files |= {"/r.tar.gz": content, "/w.json": index}
    monkeypatch.setitem(FILES, text.REVIEWS, (server.url + "r.tar.gz", md5(content)))
    monkeypatch.setitem(FILES, text.WORDS, (server.url + "w.json", md5(index)))
    rng, arrays = np.random.default_rng(0), {}
    for part, texts in IDS.items():
        keys = [sorted(texts)[i] for i in rng.permutation(len(texts))]
        flat = [texts[key] for key in keys]
        arrays[f"{part}_tokens"] = np.concatenate(flat).astype("<u2")
        arrays[f"{part}_offsets"] = np.cumsum([0, *map(len, flat)]).astype("<i4")
        arrays[f"{part}_labels"] = np.array([label for label, _ in keys], "u1")
    monkeypatch.setitem(DIGESTS, text.PREPARED, digest(arrays))
    return arrays


def test_imdb_from_the_reviews(tiny_imdb, server, cache):
    data = datasets.load("imdb", length=4, valid=1)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [2, 1, 2]
    rows = {tuple(r) for part in (data.train, data.valid) for r in part.x.tolist()}
    assert rows == {(0, 1, 4, 5), (0, 0, 1, 6), (5, 4, 5, 2)}, "padded and cut at the front"
    assert {tuple(r) for r in data.test.x.tolist()} == {(0, 0, 1, 4), (0, 1, 5, 4)}
    assert sorted(server.asked) == ["/r.tar.gz", "/w.json"]
    (cache / text.REVIEWS).unlink()  # the second load needs the kept result only
    again = datasets.load("imdb", length=4, valid=1, vocabulary=5)
    assert len(server.asked) == 2
    assert torch.equal(again.train.x, data.train.x.where(data.train.x < 5, 2))
    with pytest.raises(ValueError, match="3 training reviews"):
        datasets.load("imdb", valid=3)
