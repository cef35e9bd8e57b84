"""Every set as its publishers offer it, in small and made up: layouts, checks, downloads."""

import gzip
import hashlib
import io
import json
import struct
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments import data as datasets
from experiments.data import DataError, cifar, idx, reviews, tables
from experiments.data.files import digest
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


# MNIST


def idx_file(values: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return gzip.compress(head + values.tobytes())


@pytest.fixture
def tiny_mnist(server, monkeypatch):
    """Four idx files on the server: 20 + 5 pictures."""
    rng = np.random.default_rng(0)
    shapes = [(20, 28, 28), (20,), (5, 28, 28), (5,)]
    values = [rng.integers(0, 10, shape, dtype=np.uint8) for shape in shapes]
    contents = [idx_file(value) for value in values]
    for file, content in zip(idx.FILES, contents, strict=True):
        server.files[f"/m/{file}"] = content
    sums = tuple(hashlib.sha256(content).hexdigest() for content in contents)
    monkeypatch.setattr(idx, "MNIST_URL", server.url + "m/")
    monkeypatch.setattr(idx, "MNIST_SHA256", sums)
    return values


def test_mnist_is_downloaded_once_and_read(tiny_mnist, server, cache):
    images, labels, test_images, _ = tiny_mnist
    fetched = datasets.fetch("mnist")
    assert fetched.present
    assert fetched.where == str(cache / "mnist")
    assert fetched.size == sum(map(len, server.files.values()))
    assert len(server.asked) == 4
    data = datasets.mnist(valid=5, scale="unit", flat=False)
    assert len(server.asked) == 4
    assert np.allclose(data.train.x.numpy()[:, 0] * 255, images[:15], atol=1e-4)
    assert data.valid.y.tolist() == labels[15:].tolist()
    assert np.allclose(data.test.x.numpy()[:, 0] * 255, test_images, atol=1e-4)
    assert datasets.mnist(valid=5).train.x.shape == (15, 784)


@pytest.mark.parametrize("wrong", ["kind", "length", "short"])
def test_files_that_are_no_idx(tiny_mnist, folder, monkeypatch, wrong):
    content = {
        "kind": idx_file(tiny_mnist[1]),
        "length": gzip.compress(gzip.decompress(idx_file(tiny_mnist[0])) + b"1"),
        "short": gzip.compress(b"\0\0"),
    }[wrong]
    put(folder, f"mnist/{idx.FILES[0]}", content)
    sums = (hashlib.sha256(content).hexdigest(), *idx.MNIST_SHA256[1:])
    monkeypatch.setattr(idx, "MNIST_SHA256", sums)
    with pytest.raises(DataError, match=r"idx|values for the shape"):
        datasets.mnist(valid=5)


# CIFAR


def cifar_rows(n: int, labels: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 10, (n, labels + 3072), dtype=np.uint8)


@pytest.fixture
def tiny_cifar100(monkeypatch):
    rows = {"train.bin": cifar_rows(12, 2), "test.bin": cifar_rows(4, 2)}
    names = "\n".join(f"class{i}" for i in range(100)) + "\n"
    members = {f"cifar-100-binary/{name}": value.tobytes() for name, value in rows.items()}
    content = tar(members | {"cifar-100-binary/fine_label_names.txt": names.encode()})
    monkeypatch.setattr(cifar, "CIFAR100", replace(cifar.CIFAR100, checksum=md5(content)))
    monkeypatch.setattr(cifar, "CIFAR100_SIZES", {"train.bin": 12, "test.bin": 4})
    return rows, content


def test_cifar100_from_the_user_folder(tiny_cifar100, folder):
    rows, content = tiny_cifar100
    put(folder, cifar.CIFAR100.path, content)
    data = datasets.cifar100(valid=3)
    raw = rows["train.bin"][:9]
    assert data.train.y.tolist() == raw[:, 1].tolist(), "fine labels"
    planes = raw[:, 2:].reshape(-1, 3, 32, 32)
    assert np.allclose(data.train.x.numpy() * 255, planes, atol=1e-4)
    assert data.valid.y.tolist() == rows["train.bin"][9:, 1].tolist()
    assert data.classes == tuple(f"class{i}" for i in range(100))
    assert data.pictures == (3, 32, 32)
    assert list(folder.rglob("*.bin")) == [], "nothing is unpacked"


def test_cifar100_is_downloaded(tiny_cifar100, server, monkeypatch):
    server.files["/c.tar.gz"] = tiny_cifar100[1]
    monkeypatch.setattr(cifar, "CIFAR100", replace(cifar.CIFAR100, url=server.url + "c.tar.gz"))
    assert len(datasets.load("cifar-100", valid=0).train) == 12


@pytest.mark.parametrize("damage", ["flip", "truncate", "size", "lacking", "no tar"])
def test_cifar100_damaged(tiny_cifar100, folder, monkeypatch, damage):
    _, content = tiny_cifar100
    bad = {
        "flip": content[:99] + bytes([content[99] ^ 1]) + content[100:],
        "truncate": content[:-20],
        "lacking": tar({"x/train.bin": b"1"}),
        "no tar": b"something else",
    }.get(damage, content)
    path = put(folder, cifar.CIFAR100.path, bad)
    if damage == "size":
        monkeypatch.setattr(cifar, "CIFAR100_SIZES", {"train.bin": 13, "test.bin": 4})
    if damage in ("flip", "truncate"):
        with pytest.raises(DataError) as caught:
            datasets.cifar100()
        assert md5(bad)[4:] in str(caught.value)
        assert md5(content)[4:] in str(caught.value)
        return
    monkeypatch.setattr(cifar, "CIFAR100", replace(cifar.CIFAR100, checksum=md5(bad)))
    with pytest.raises(DataError, match=r"cifar-100-binary\.tar\.gz is damaged"):
        datasets.cifar100()
    assert path.is_file()


def test_cifar10_from_the_archive(folder, monkeypatch):
    rows = {name: cifar_rows(3 + i, 1) for i, name in enumerate(cifar.CIFAR10_MD5)}
    members = {f"cifar-10-batches-bin/{name}": value.tobytes() for name, value in rows.items()}
    turned = dict(reversed(members.items()))  # the order inside the archive does not matter
    content = tar(turned | {"cifar-10-batches-bin/readme.html": b"x"})
    put(folder, cifar.CIFAR10.path, content)
    with pytest.raises(DataError, match="its md5 is"):
        datasets.cifar10()
    monkeypatch.setattr(cifar, "CIFAR10", replace(cifar.CIFAR10, checksum=md5(content)))
    with pytest.raises(DataError, match=r"md5 of data_batch_1\.bin"):
        datasets.cifar10()
    sums = {name: hashlib.md5(value.tobytes()).hexdigest() for name, value in rows.items()}
    monkeypatch.setattr(cifar, "CIFAR10_MD5", sums)
    data = datasets.cifar10(valid=7)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [18, 7, 8]
    train = np.concatenate(list(rows.values())[:-1])
    assert torch.cat([data.train.y, data.valid.y]).tolist() == train[:, 0].tolist()
    assert np.allclose(data.test.x.numpy().reshape(8, -1) * 255, rows["test_batch.bin"][:, 1:])


# UCI


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
    monkeypatch.setattr(tables, "URL", server.url + "uci.zip")
    with pytest.raises(DataError, match=r"sha256 of its arrays.*expected 96d5650d8b"):
        datasets.uci("yacht")
    monkeypatch.setitem(tables.TABLES, "yacht", ("yacht", digest(arrays)))
    data = datasets.uci("yacht", split=1, valid=0.2)
    assert server.asked == ["/uci.zip"]
    assert [len(part) for part in (data.train, data.valid, data.test)] == [22, 5, 3]
    rows = arrays["train_index"][1]
    fit, y = rows[:22], arrays["y"]
    assert data.target_mean == pytest.approx(y[fit].mean())
    assert data.target_scale == pytest.approx(y[fit].std())
    expected = (arrays["X"][rows[22:]] - arrays["X"][fit].mean(0)) / arrays["X"][fit].std(0)
    assert np.allclose(data.valid.x.numpy(), expected, atol=1e-6)
    with pytest.raises(ValueError, match="there are 2 splits"):
        datasets.uci("yacht", split=2)
    assert datasets.fetch("uci/yacht").where == str(cache / "uci")


def test_uci_prepared_copy_comes_first(folder, monkeypatch):
    arrays = uci_arrays()
    monkeypatch.setitem(tables.TABLES, "yacht", ("yacht", digest(arrays)))
    np.savez_compressed(put(folder, "uci/yacht.npz", b""), **arrays)
    assert datasets.load("uci/yacht", valid=0).valid.x.shape == (0, 4)


@pytest.mark.parametrize("content", [b"a page of a captive portal", b""])
def test_uci_archive_damaged(folder, content):
    put(folder, tables.ARCHIVE, content)
    with pytest.raises(DataError, match=r"the table yacht cannot be read.*Delete it"):
        datasets.uci("yacht")


def test_uci_archive_without_the_table(folder):
    put(folder, tables.ARCHIVE, uci_archive(uci_arrays(), "another"))
    with pytest.raises(DataError, match="the table yacht cannot be read"):
        datasets.uci("yacht")


# IMDB

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
    members = {f"aclImdb/{name}.txt": text.encode() for name, text in TEXTS.items()}
    noise = {"aclImdb/train/unsup/0_0.txt": b"the", "aclImdb/README": b"the"}
    content = tar(members | noise)
    index = json.dumps({"the": 1, "film": 2, "don't": 3, "rare": 19_997}).encode()
    server.files |= {"/r.tar.gz": content, "/w.json": index}
    made = {"REVIEWS": ("r.tar.gz", content), "WORDS": ("w.json", index)}
    for name, (file, data) in made.items():
        old = getattr(reviews, name)
        monkeypatch.setattr(reviews, name, replace(old, url=server.url + file, checksum=md5(data)))
    rng, arrays = np.random.default_rng(0), {}
    for part, texts in IDS.items():
        keys = [sorted(texts)[i] for i in rng.permutation(len(texts))]
        flat = [texts[key] for key in keys]
        arrays[f"{part}_tokens"] = np.concatenate(flat).astype("<u2")
        arrays[f"{part}_offsets"] = np.cumsum([0, *map(len, flat)]).astype("<i4")
        arrays[f"{part}_labels"] = np.array([label for label, _ in keys], "u1")
    monkeypatch.setattr(reviews, "SHA256", digest(arrays))
    return arrays


def test_imdb_from_the_reviews(tiny_imdb, server, cache):
    data = datasets.imdb(length=4, valid=1)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [2, 1, 2]
    rows = {tuple(r) for part in (data.train, data.valid) for r in part.x.tolist()}
    assert rows == {(0, 1, 4, 5), (0, 0, 1, 6), (5, 4, 5, 2)}, "padded and cut at the front"
    assert {tuple(r) for r in data.test.x.tolist()} == {(0, 0, 1, 4), (0, 1, 5, 4)}
    assert sorted(server.asked) == ["/r.tar.gz", "/w.json"]
    (cache / reviews.REVIEWS.path).unlink()  # the second load needs the kept result only
    again = datasets.imdb(length=4, valid=1, vocabulary=5)
    assert len(server.asked) == 2
    assert torch.equal(again.train.x, data.train.x.where(data.train.x < 5, 2))
    assert [p.name for p in (cache / "imdb").iterdir() if "tmp" in p.name] == []
    with pytest.raises(ValueError, match="3 training reviews"):
        datasets.imdb(valid=3)


def test_imdb_that_converts_to_something_else(tiny_imdb, monkeypatch, cache):
    monkeypatch.setattr(reviews, "SHA256", "0" * 64)
    with pytest.raises(DataError, match="expected 0000"):
        datasets.imdb()
    assert not (cache / reviews.PREPARED).exists()


def test_imdb_pickled_by_keras_is_refused(folder):
    ragged = np.empty(2, dtype=object)
    ragged[:] = [[1, 2], [3]]
    np.savez(put(folder, reviews.PREPARED, b""), x_train=ragged, train_tokens=ragged)
    with pytest.raises(DataError, match=r"(?s)imdb\.npz is damaged.*pickle"):
        datasets.imdb()
