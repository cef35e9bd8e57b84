"""Finding, checking and downloading files, with a web server on this machine as the publisher."""

import hashlib

import numpy as np
import pytest

from experiments.data import DataError, files
from experiments.data.files import digest, find, obtain, read_arrays, require_digest
from tests.data.conftest import put

CONTENT = b"some numbers" * 1000


SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Says where toy/file.bin is published, and with which checksum."""

    def register(url: str = "http://127.0.0.1:9/", checksum: str | None = f"sha256:{SHA256}"):
        monkeypatch.setitem(files.FILES, "toy/file.bin", (f"{url}file.bin", checksum))

    register()
    return register


def test_user_folder_comes_before_the_cache(folder, cache):
    assert find("toy/file.bin") is None
    cached = put(cache, "toy/file.bin", CONTENT)
    assert obtain("toy/file.bin") == cached
    mine = put(folder, "toy/file.bin", CONTENT)
    assert obtain("toy/file.bin") == mine


def test_files_that_belong_together_are_in_one_folder(folder, cache):
    put(folder, "toy/a", b"")
    put(cache, "toy/b", b"")
    assert find("toy/a", "toy/b") is None
    both = [put(cache, f"toy/{name}", b"") for name in "ab"]
    assert find("toy/a", "toy/b") == both


def test_folders_are_named_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("KASURI_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="nowhere"):
        find("toy/file.bin")
    monkeypatch.setenv("KASURI_DATA", "")
    assert files.user_folder() is None
    monkeypatch.delenv("KASURI_CACHE")
    assert files.cache_folder().name == "kasuri"


@pytest.mark.parametrize("where", ["folder", "cache"])
def test_a_damaged_file_is_an_error_and_not_replaced(where, request, server, registered):
    server.files["/file.bin"], bad = CONTENT, CONTENT[:-1]
    path = put(request.getfixturevalue(where), "toy/file.bin", bad)
    registered(server.url)
    with pytest.raises(DataError) as caught:
        obtain("toy/file.bin")
    for part in (str(path), hashlib.sha256(bad).hexdigest(), SHA256, server.url):
        assert part in str(caught.value)
    assert server.asked == []
    assert path.read_bytes() == bad


@pytest.mark.parametrize("checksum", [f"sha256:{SHA256}", None])
def test_a_download_goes_into_the_cache_once(server, folder, cache, checksum, registered):
    server.files["/file.bin"] = CONTENT
    registered(server.url, checksum)
    path = obtain("toy/file.bin")
    assert path == cache / "toy" / "file.bin"
    assert path.read_bytes() == CONTENT
    assert obtain("toy/file.bin") == path
    assert server.asked == ["/file.bin"]
    assert list(folder.iterdir()) == [], "the user's folder is never written to"


def test_a_download_that_fails_leaves_nothing_and_says_everything(
    server, folder, cache, registered
):
    server.files["/file.bin"] = b"captive portal"
    registered(server.url)
    with pytest.raises(DataError) as caught:
        obtain("toy/file.bin")
    assert hashlib.sha256(b"captive portal").hexdigest() in str(caught.value)
    assert [p for p in cache.rglob("*") if p.is_file()] == []
    del server.files["/file.bin"]
    registered(server.url)
    with pytest.raises(DataError, match=f"{folder} .*{server.url}file.*404.*{cache}/toy/file"):
        obtain("toy/file.bin")


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch, server, registered):
    server.files["/file.bin"] = CONTENT
    monkeypatch.setenv("KASURI_CACHE", str(put(tmp_path, "a-file", b"")))
    registered(server.url)
    with pytest.raises(DataError, match=r"toy/file\.bin"):
        obtain("toy/file.bin")


ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(3, dtype="<u2")}


def checked(path):
    arrays = read_arrays(path, ("a", "b"), "u")
    require_digest(arrays, digest(ARRAYS), path, "u")
    return arrays


def test_arrays_are_checked_by_their_numbers(tmp_path):
    path = tmp_path / "x.npz"
    for save in (np.savez, np.savez_compressed):  # other bytes, same numbers
        save(path, **ARRAYS, more=np.ones(2))
        assert all(np.array_equal(value, ARRAYS[key]) for key, value in checked(path).items())
    turned = ARRAYS | {"a": np.asfortranarray(ARRAYS["a"])}
    assert digest(turned) == digest(ARRAYS)


def test_pickles_and_damaged_archives_are_refused(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was read",))

    path = tmp_path / "x.npz"
    np.savez(path, a=np.array([Bomb()], dtype=object), b=ARRAYS["b"])
    with pytest.raises(DataError, match=r"(?s)x\.npz.*pickle"):
        checked(path)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match=r"x\.npz"):
        checked(path)
