"""Inputs as small pictures inside the page: a PNG encoder and a source of data sets."""

import base64
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Inputs(Protocol):
    """One part of a data set."""

    @property
    def x(self) -> Any:
        """Inputs, one per row: a tensor."""


class PictureData(Protocol):
    """What the report needs to know about a data set to show its inputs."""

    @property
    def test(self) -> Inputs:
        """The test data."""

    @property
    def pictures(self) -> Sequence[int] | None:
        """(channels, height, width) of an input, or None if inputs are not pictures."""

    @property
    def pixel_range(self) -> Sequence[float] | None:
        """The numbers for black and white; needed for pictures."""

    @property
    def classes(self) -> Sequence[str] | None:
        """Names of the labels."""


class Pictures:
    """Test inputs as pictures, each data set fetched once; reasons instead of errors.

    Args:
        fetch: a function from the name of a data set to the data set, or None.
    """

    def __init__(self, fetch: Callable[[str], PictureData] | None) -> None:
        self._fetch = fetch
        self._known: dict[str, PictureData | str] = {}

    def names(self, data: str) -> Sequence[str]:
        """Names of the classes of a data set; empty if unknown."""
        source = self._source(data)
        try:
            return [] if isinstance(source, str) else list(source.classes or [])
        except Exception:  # a data set is somebody else's code: the page comes first
            return []

    def encoded(self, data: str, index: int) -> tuple[str | None, str]:
        """A data URI of one test input; or None and the reason."""
        source = self._source(data)
        if isinstance(source, str):
            return None, source
        try:
            if source.pictures is None or source.pixel_range is None:
                return None, f"inputs of {data} are not pictures"
            if not 0 <= index < len(source.test.x):
                return None, f"{data} has no test input {index}"
            low, high = source.pixel_range
            values = source.test.x[index].reshape(tuple(source.pictures)).tolist()
            return data_uri(png(values, float(low), float(high))), ""
        except Exception as error:  # as above
            return None, f"{data}: {type(error).__name__}: {error}"

    def _source(self, data: str) -> PictureData | str:
        if self._fetch is None:
            return "no data sets were given to the report"
        if data not in self._known:
            try:
                self._known[data] = self._fetch(data)
            except Exception as error:  # no network, no file, no such name: all the same here
                self._known[data] = f"{data} could not be loaded: {error}"
        return self._known[data]


def png(values: Sequence[Sequence[Sequence[float]]], low: float, high: float) -> bytes:
    r"""A PNG file of a picture in grey (one channel) or colour (three).

    Args:
        values: (channels, height, width).
        low: the number for black.
        high: the number for white.

    Examples:
        >>> png([[[0.0, 1.0]]], 0, 1)[:4]
        b'\x89PNG'
    """
    channels, height, width = len(values), len(values[0]), len(values[0][0])
    if channels not in (1, 3):
        raise ValueError(f"a picture has 1 or 3 channels, not {channels}")
    span = (high - low) or 1.0
    rows = bytearray()
    for y in range(height):
        rows.append(0)  # no filter
        for x in range(width):
            rows += bytes(_byte((values[c][y][x] - low) / span) for c in range(channels))
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(rows), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def data_uri(image: bytes) -> str:
    """A PNG file as an address that holds the file itself."""
    return "data:image/png;base64," + base64.b64encode(image).decode()


def _byte(share: float) -> int:
    return round(255 * min(1.0, max(0.0, share))) if share == share else 0


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
