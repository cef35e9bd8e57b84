"""Names, loading by name, status, fetching, the sets of scikit-learn, and what is imported when."""

import ast
import sys
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

from experiments import data as datasets
from experiments.data import DataError, catalog, idx
from tests.data.conftest import put

PACKAGE = Path(datasets.__file__).parent


def test_public_names_exist_and_are_documented():
    assert len(set(datasets.__all__)) == len(datasets.__all__)
    for name in datasets.__all__:
        assert getattr(datasets, name).__doc__


@pytest.mark.parametrize("file", sorted(PACKAGE.glob("*.py")), ids=lambda f: f.stem)
def test_import_needs_nothing_but_torch(file):
    allowed = {"torch", "kasuri", *sys.stdlib_module_names}
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module]
        for name in names:
            assert name.partition(".")[0] in allowed
            assert not name.startswith("kasuri") or name.startswith("datasets")
            assert name != "pickle"


def test_names():
    assert len(set(datasets.names())) == len(datasets.names()) == 19
    assert {"digits", "breast-cancer", "uci/boston", "cifar-100", "imdb"} <= set(datasets.names())


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [("minst", "mnist"), ("uci/yach", "uci/yacht"), ("breast_cancer", "breast-cancer")],
)
def test_unknown_names(asked, nearest):
    for function in (datasets.load, datasets.fetch):
        with pytest.raises(ValueError, match=rf"did you mean '{nearest}'\?.*digits.*imdb"):
            function(asked)
    with pytest.raises(ValueError, match=r"no data set 'qqqq'\. There are: digits"):
        datasets.load("qqqq")


def test_options_are_those_of_the_set():
    with pytest.raises(TypeError, match="colour"):
        datasets.load("mnist", colour=True)
    with pytest.raises(ValueError, match=r"uci\('beer'\): choose one of 'boston'"):
        datasets.uci("beer")
    for valid in (1.0, -0.1):
        with pytest.raises(ValueError, match="share of the training rows"):
            datasets.uci("yacht", valid=valid)
    for options in ({"vocabulary": 3}, {"vocabulary": 20_001}, {"length": 0}):
        with pytest.raises(ValueError, match="vocabulary from 4 to 20000"):
            datasets.imdb(**options)


def test_digits_are_those_of_the_example():
    data, table = datasets.load("digits"), load_digits()
    shuffle = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    x = (torch.tensor(table.data, dtype=torch.float32) / 8 - 1)[shuffle]
    y = torch.tensor(table.target)[shuffle]
    for part, rows in (
        (data.train, slice(0, 1000)),
        (data.valid, slice(1000, 1297)),
        (data.test, slice(1297, None)),
    ):
        assert torch.equal(part.x, x[rows])
        assert torch.equal(part.y, y[rows])
    assert data.classes == tuple("0123456789")


@pytest.mark.parametrize(
    ("name", "table", "sizes"),
    [
        ("diabetes", load_diabetes, (265, 88, 89)),
        ("breast-cancer", load_breast_cancer, (341, 113, 115)),
        ("wine", load_wine, (106, 35, 37)),
    ],
)
def test_bundled_tables(name, table, sizes):
    data, raw = datasets.load(name), table()
    parts = (data.train, data.valid, data.test)
    assert tuple(map(len, parts)) == sizes
    assert sum(sizes) == len(raw.target)
    assert all(part.x.dtype == torch.float32 for part in parts)
    assert data.train.x.mean(0).abs().max() < 1e-5
    assert torch.allclose(data.train.x.std(0, correction=0), torch.ones(raw.data.shape[1]))
    assert data.test.x.mean(0).abs().max() > 1e-3, "statistics of train, not of all"
    y = torch.cat([part.y for part in parts])
    if data.classes is None:
        assert y.shape == (442, 1)
        y = y[:, 0] * data.target_scale + data.target_mean
        assert torch.allclose(y.sort()[0].double(), torch.tensor(raw.target).sort()[0], atol=1e-3)
    else:
        assert y.dtype == torch.long
        assert torch.equal(y.bincount(), torch.tensor(raw.target).bincount()), "rows partitioned"
        assert len(data.classes) == len(raw.target_names)
    again = datasets.load(name)
    assert torch.equal(again.train.x, data.train.x)


def test_scikit_learn_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(
        ImportError, match=r"kasuri\.data\.load\('breast-cancer'\) needs scikit-learn: pip install"
    ):
        datasets.breast_cancer()


def test_status_of_an_empty_machine():
    found = {s.name: s for s in datasets.status()}
    assert tuple(found) == datasets.names()
    assert found["digits"].present
    assert not found["mnist"].present
    assert found["mnist"].where == ""
    assert found["mnist"].size == 0


def test_status_sees_complete_sets_only(folder, cache):
    names = [f"mnist/{file}" for file in idx.FILES]
    for name in names[:3]:
        put(folder, name, b"12345")
    assert not catalog._status("mnist", catalog.SETS["mnist"]).present
    put(cache, names[3], b"1234")
    seen = catalog._status("mnist", catalog.SETS["mnist"])
    assert (seen.present, seen.where, seen.size) == (True, str(folder / "mnist"), 19)
    put(cache, "imdb/imdb.npz", b"1")
    assert {s.name for s in datasets.status() if s.size} == {"mnist", "static-mnist", "imdb"}


def test_fetch_of_a_bundled_set():
    assert datasets.fetch("wine").present


def test_missing_file_message(monkeypatch, cache):
    monkeypatch.setattr(idx, "MNIST_URL", "http://127.0.0.1:9/mnist/")
    with pytest.raises(DataError) as caught:
        datasets.load("mnist")
    for part in (
        "mnist/train-images-idx3-ubyte.gz",
        "KASURI_DATA (not set)",
        "http://127.0.0.1:9/mnist/train-images-idx3-ubyte.gz",
        str(cache / "mnist" / "train-images-idx3-ubyte.gz"),
    ):
        assert part in str(caught.value)
    assert isinstance(caught.value, ValueError)
