"""Sheets of pictures that an auto-encoder made: reconstructions, draws, traversals."""

import base64
import binascii
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.figures import by_variant, folded
from experiments.report.markup import Html, el
from experiments.report.pictures import data_uri, png
from experiments.report.results import Row
from experiments.report.stored import told
from experiments.report.values import records

LARGEST = 2000  # pixels of a side: a page is for looking at


@dataclass(frozen=True)
class Sheet:
    """One sheet: its title, what is on it, and a picture in grey as an address."""

    title: str
    caption: str
    height: int
    width: int
    image: str


def sheets(rows: Sequence[Row]) -> Iterator[Html]:
    """A section with the sheets of every variant, of its first seed; nothing if no file has any."""
    blocks: list[Html] = []
    missing: list[str] = []
    for index, row in enumerate(rows):
        stored = told(row.results, "sheets")
        found = [(result, _all(value)) for result, value in stored]
        usable = next(((result, pages) for result, pages in found if pages), None)
        if usable is not None:
            result, pages = usable
            drawn = [_figure(row, page) for page in pages]
            grid = el("div", *drawn, class_="sheets")
            blocks.append(folded(index, row, f"seed {result.seed}", grid, unfolded=not blocks))
        elif stored:
            missing.append(row.name)
    yield from by_variant("Pictures", [], blocks, missing)


def parsed(entry: Mapping[str, Any]) -> Sheet | None:
    """The sheet in an entry of the file; None if it is no picture.

    Examples:
        >>> pixels = base64.b64encode(zlib.compress(bytes([0, 255]))).decode()
        >>> parsed({"title": "Draws", "shape": [1, 2], "pixels": pixels}).width
        2
        >>> parsed({"title": "Draws", "shape": [2, 2], "pixels": pixels})
    """
    shape, text = entry.get("shape"), entry.get("pixels")
    if not (isinstance(shape, list) and len(shape) == 2 and isinstance(text, str)):
        return None
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 < n <= LARGEST for n in shape):
        return None
    height, width = shape
    pixels = _unpacked(text, height * width)
    if pixels is None:
        return None
    lines = [list(map(float, pixels[y * width : (y + 1) * width])) for y in range(height)]
    title, caption = (one if isinstance(one, str) else "" for one in map(entry.get, _WORDS))
    return Sheet(title or "Pictures", caption, height, width, data_uri(png([lines], 0.0, 255.0)))


_WORDS = ("title", "caption")


def _unpacked(text: str, count: int) -> bytes | None:
    """So many bytes, and never more, whatever the text would unfold to."""
    try:
        unzip = zlib.decompressobj()
        pixels = unzip.decompress(base64.b64decode(text, validate=True), count + 1)
    except (binascii.Error, ValueError, zlib.error):
        return None
    return pixels if len(pixels) == count else None


def _all(value: object) -> list[Sheet]:
    found = [parsed(entry) for entry in records(value)]
    return [page for page in found if page is not None]


def _figure(row: Row, page: Sheet) -> Html:
    label = f"{page.title} of {row.name}: {page.caption}" if page.caption else page.title
    return el(
        "figure",
        el("h4", page.title),
        el("img", src=page.image, alt=label, width=page.width, height=page.height),
        el("figcaption", page.caption, class_="small") if page.caption else None,
    )
