"""No test here touches the network or the user's cache; the real files are used where they are."""

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
NAMED = os.environ.get("KASURI_DATA")  # as the test run was started, before the fixture removes it
REAL = Path(NAMED) if NAMED else BESIDE


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no user folder, no proxy."""
    monkeypatch.delenv("KASURI_DATA", raising=False)
    monkeypatch.setenv("KASURI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache"


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real files, named by KASURI_DATA."""
    if not REAL.is_dir():
        pytest.skip(f"real data: set KASURI_DATA, or put it in {BESIDE}")
    monkeypatch.setenv("KASURI_DATA", str(REAL))
    return REAL


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user folder, named by KASURI_DATA."""
    made = tmp_path / "mine"
    made.mkdir()
    monkeypatch.setenv("KASURI_DATA", str(made))
    return made


class Server:
    """A web server on this machine: `files` by path, `asked` is the list of requests."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                content = outer.files.get(self.path)
                self.send_response(200 if content is not None else 404)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()
    thread.join()


def put(folder: Path, path: str, content: bytes) -> Path:
    """Write a file, folders included."""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target
