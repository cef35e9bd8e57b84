"""Finding, checking and downloading files, with a web server on this machine as the publisher."""

import hashlib
import io
import socket
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from experiments.data import DataError, files
from experiments.data.files import Original, digest, find, find_together, obtain, read_arrays
from tests.data.conftest import put

CONTENT = b"some numbers" * 1000


def original(url: str = "http://127.0.0.1:9/", content: bytes = CONTENT) -> Original:
    total = hashlib.sha256(content).hexdigest()
    return Original("toy", "toy/file.bin", f"{url}file.bin", f"sha256:{total}", "file.npz")


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/"


def test_user_folder_comes_before_the_cache(folder, cache):
    assert find("toy/file.bin") is None
    cached = put(cache, "toy/file.bin", CONTENT)
    assert obtain(original()) == cached
    mine = put(folder, "toy/file.bin", CONTENT)
    assert obtain(original()) == mine


def test_find_together_wants_one_folder(folder, cache):
    put(folder, "toy/a", b"")
    put(cache, "toy/b", b"")
    assert find_together(["toy/a", "toy/b"]) is None
    both = [put(cache, f"toy/{name}", b"") for name in "ab"]
    assert find_together(["toy/a", "toy/b"]) == both


def test_user_folder_that_does_not_exist(monkeypatch, tmp_path):
    monkeypatch.setenv("KASURI_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"KASURI_DATA=.*nowhere is not a folder"):
        find("toy/file.bin")
    monkeypatch.setenv("KASURI_DATA", "")
    assert files.user_folder() is None


def test_cache_is_that_of_the_system_by_default(monkeypatch):
    monkeypatch.delenv("KASURI_CACHE")
    assert files.cache_folder().name == "kasuri"


@pytest.mark.parametrize("where", ["folder", "cache"])
@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"S" + b[1:], lambda b: b""])
def test_a_damaged_file_is_an_error_and_not_replaced(where, damage, request, server):
    place, bad = request.getfixturevalue(where), damage(CONTENT)
    server.files["/file.bin"] = CONTENT
    path = put(place, "toy/file.bin", bad)
    with pytest.raises(DataError) as caught:
        obtain(original(server.url))
    told = str(caught.value)
    assert str(path) in told
    assert hashlib.sha256(bad).hexdigest() in told, "found"
    assert hashlib.sha256(CONTENT).hexdigest() in told, "expected"
    assert "Delete it" in told
    assert server.url in told
    assert server.asked == []
    assert path.read_bytes() == bad


def test_md5_is_checked_too(folder):
    put(folder, "toy/file.bin", CONTENT)
    good = replace(original(), checksum=f"md5:{hashlib.md5(CONTENT).hexdigest()}")
    assert obtain(good).is_file()
    with pytest.raises(DataError, match="its md5 is"):
        obtain(replace(good, checksum="md5:" + "0" * 32))


def test_download_once(server, cache):
    server.files["/file.bin"] = CONTENT
    path = obtain(original(server.url))
    assert path == cache / "toy" / "file.bin"
    assert path.read_bytes() == CONTENT
    assert obtain(original(server.url)) == path
    assert server.asked == ["/file.bin"]


def test_download_goes_to_the_cache_even_with_a_user_folder(server, folder, cache):
    server.files["/file.bin"] = CONTENT
    assert obtain(original(server.url)).is_relative_to(cache)
    assert list(folder.iterdir()) == []


def test_download_without_a_checksum(server):
    server.files["/file.bin"] = CONTENT
    assert obtain(replace(original(server.url), checksum=None)).read_bytes() == CONTENT


def test_download_with_wrong_content_leaves_nothing(server, cache):
    server.files["/file.bin"] = b"captive portal"
    with pytest.raises(DataError) as caught:
        obtain(original(server.url))
    told = str(caught.value)
    assert hashlib.sha256(b"captive portal").hexdigest() in told
    assert hashlib.sha256(CONTENT).hexdigest() in told
    assert [p for p in cache.rglob("*") if p.is_file()] == []


def test_missing_on_the_server(server):
    with pytest.raises(DataError, match="404"):
        obtain(original(server.url))


def test_offline_is_told_quickly_and_completely(folder, cache):
    url, start = closed_port(), time.perf_counter()
    with pytest.raises(DataError) as caught:
        obtain(original(url))
    assert time.perf_counter() - start < 5
    told = str(caught.value)
    for part in (
        "toy/file.bin",
        "'toy'",
        str(folder / "toy" / "file.bin"),
        f"save the file as {cache / 'toy' / 'file.bin'}",
        f"{url}file.bin",
        "nor file.npz",
    ):
        assert part in told
    assert [p for p in cache.rglob("*") if p.is_file()] == []


def test_cache_that_cannot_be_written(tmp_path, monkeypatch, server):
    server.files["/file.bin"] = CONTENT
    monkeypatch.setenv("KASURI_CACHE", str(put(tmp_path, "a-file", b"")))
    with pytest.raises(DataError, match=r"toy/file\.bin"):
        obtain(original(server.url))


def test_progress_on_a_terminal(server, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    server.files["/file.bin"] = CONTENT * 100
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    obtain(original(server.url, CONTENT * 100))
    assert "toy/file.bin: 1.2 of 1.2 (100%) MB" in screen.getvalue()
    assert screen.getvalue().endswith("\n")


def test_pooch_is_needed_for_downloads_only(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)  # as if not installed
    with pytest.raises(ImportError, match=r"kasuri\.data\.load\('toy'\) needs pooch: pip install"):
        obtain(original())
    put(folder, "toy/file.bin", CONTENT)
    monkeypatch.delenv("KASURI_CACHE")
    assert obtain(original()).is_file()


def arrays() -> dict[str, np.ndarray]:
    return {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(3, dtype="<u2")}


def test_arrays_round_trip(tmp_path):
    path = tmp_path / "x.npz"
    for save in (np.savez, np.savez_compressed):  # other bytes, same numbers
        save(path, **arrays(), more=np.ones(2))
        got = read_arrays(path, ("a", "b"), digest(arrays()), "u")
        assert all(np.array_equal(got[key], value) for key, value in arrays().items())


@pytest.mark.parametrize(
    "change",
    [
        {"a": np.arange(6.0).reshape(3, 2)},
        {"a": np.arange(6.0, dtype="<f4").reshape(2, 3)},
        {"a": np.arange(1, 7.0).reshape(2, 3)},
    ],
)
def test_other_numbers_are_refused(tmp_path, change):
    np.savez(tmp_path / "x.npz", **(arrays() | change))
    with pytest.raises(DataError) as caught:
        read_arrays(tmp_path / "x.npz", ("a", "b"), digest(arrays()), "u")
    assert digest(arrays()) in str(caught.value)
    assert digest(arrays() | change) in str(caught.value)


def test_digest_does_not_depend_on_memory_order():
    turned = arrays() | {"a": np.asfortranarray(arrays()["a"])}
    assert digest(turned) == digest(arrays())


def test_pickles_are_refused(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was read",))

    path = tmp_path / "x.npz"
    np.savez(path, a=np.array([Bomb()], dtype=object), b=arrays()["b"])
    with pytest.raises(DataError, match=r"(?s)x\.npz is damaged.*pickle"):
        read_arrays(path, ("a", "b"), digest(arrays()), "u")


@pytest.mark.parametrize("damage", ["truncate", "empty", "npy", "lacking"])
def test_unreadable_archives_are_refused(tmp_path, damage):
    path = tmp_path / "x.npz"
    np.savez(path, **arrays())
    if damage == "npy":
        with path.open("wb") as file:
            np.save(file, arrays()["a"])
    elif damage == "lacking":
        np.savez(path, a=arrays()["a"])
    else:
        path.write_bytes(path.read_bytes()[: 300 if damage == "truncate" else 0])
    with pytest.raises(DataError) as caught:
        read_arrays(path, ("a", "b"), digest(arrays()), "u")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    for part in (str(path), found, digest(arrays())):
        assert part in str(caught.value)


def test_any_changed_byte_is_refused_or_harmless(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, **arrays())
    content, refused = path.read_bytes(), 0
    for place in range(
        0, len(content), 3
    ):  # names, sizes, time stamps and flags of the zip included
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            got = read_arrays(path, ("a", "b"), digest(arrays()), "u")
        except DataError:
            refused += 1
        else:
            assert all(np.array_equal(got[key], value) for key, value in arrays().items())
    assert refused > len(content) / 6
