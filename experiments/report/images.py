"""Pictures inside the page: the most uncertain test inputs, and what auto-encoders draw."""

import base64
import io
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.report.json_numbers import number, short
from experiments.report.score_tables import ScoreRow
from experiments.report.sections import Picture, Section, stored, usable

SHOWN = 12  # uncertain inputs of a variant
LARGEST = 2000  # pixels of a side of a sheet: a page is for looking at
Fetch = Callable[[str], Any]


class DataSets:
    """Data sets by name, each fetched once; a reason instead of an error.

    Args:
        fetch: the data set of a name, with `test.x`, `pictures` (the shape of an input, or None),
            `pixel_range` (black and white) and `classes`; None if there are no data sets.
    """

    def __init__(self, fetch: Fetch | None) -> None:
        self._fetch = fetch
        self._known: dict[str, tuple[Any, str]] = {}

    def get(self, name: str) -> tuple[Any, str]:
        """The data set or None, and why its inputs cannot be shown as pictures."""
        if self._fetch is None:
            return None, "no data sets were given to the report"
        if name not in self._known:
            try:
                self._known[name] = self._fetch(name), f"inputs of {name} are not pictures"
            except Exception as error:  # no network, no file, no such name: the page comes first
                self._known[name] = None, f"{name} could not be loaded: {error!s:.200}"
        return self._known[name]


def uncertain_inputs(row: ScoreRow, data_sets: DataSets) -> Section:
    """Test inputs with the largest entropy, of the first seed that has some."""
    for result, entries in stored(row, "uncertain", lambda value: [dict(e) for e in value], []):
        data, reason = data_sets.get(str(result.settings.get("data")))
        shown = [_card(entry, data) for entry in entries[:SHOWN]]
        note = "" if any(card.image for card in shown) else f"No pictures: {reason}. "
        note += "Entropy is in nats; epistemic is the part of it that more data could remove."
        heading = f"Most uncertain test inputs (seed {result.seed})"
        return Section(heading, pictures=shown, note=note)
    return Section("")


def _card(entry: Mapping[str, Any], data: Any) -> Picture:
    label, guess = (_class(entry.get(key), data) for key in ("label", "guess"))
    numbers = {key: number(entry.get(key)) for key in ("probability", "entropy", "epistemic")}
    chance = numbers.pop("probability")
    likely = "" if chance is None else f" ({100 * chance:.0f} %)"
    facts = [f"{key} {value:.2f}" for key, value in numbers.items() if value is not None]
    verdict = "✓ right" if label == guess else f"✗ guessed {guess}"
    picture = next(usable(lambda index: _input(index, data), entry.get("index")), "")
    return Picture(picture, label, ", ".join([verdict + likely, *facts]))


def _class(value: object, data: Any) -> str:
    names: Sequence[str] = getattr(data, "classes", None) or ()
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return str(names[value])
    known = number(value)
    return str(value) if known is None else short(known)


def _input(index: Any, data: Any) -> str:
    if type(index) is not int or index < 0:
        raise ValueError(f"the number of an input must be an integer from 0 on, got {index}")
    low, high = data.pixel_range
    values = np.asarray(data.test.x[index], dtype=np.float64).reshape(tuple(data.pictures))
    return image((np.moveaxis(values, 0, -1) - low) / (high - low))


def sheets(rows: Sequence[ScoreRow]) -> Section:
    """Reconstructions, draws and traversals of auto-encoders, of the first seed."""
    missing: list[str] = []
    parts = []
    for row in rows:
        found = stored(row, "sheets", lambda value: [_sheet(entry) for entry in value], missing)
        for result, pictures in found[:1]:
            parts.append(Section(f"seed {result.seed}", pictures=pictures, row=row))
    return Section("Pictures", parts=parts, missing=missing)


def _sheet(entry: Mapping[str, Any]) -> Picture:
    height, width = entry["shape"]
    if not 0 < height <= LARGEST or not 0 < width <= LARGEST:
        raise ValueError(f"a sheet must have 1 to {LARGEST} pixels a side, got {height} x {width}")
    packed = base64.b64decode(entry["pixels"], validate=True)
    pixels = zlib.decompressobj().decompress(packed, height * width + 1)  # never more
    grey = np.frombuffer(pixels, np.uint8).reshape(height, width)
    return Picture(image(grey / 255), str(entry["title"]), str(entry.get("caption") or ""))


def image(values: np.ndarray[Any, Any]) -> str:
    """A picture in grey (height, width) or colour (height, width, 3), from 0 to 1, as an address."""
    from PIL import Image

    levels = np.round(255 * np.clip(np.nan_to_num(values), 0, 1)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels.squeeze(-1) if levels.shape[-1] == 1 else levels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
