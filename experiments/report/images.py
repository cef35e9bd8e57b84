"""Pictures inside the page: the most uncertain test inputs, and what auto-encoders draw."""

import base64
import io
import operator
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from experiments.report.json_numbers import number, short
from experiments.report.sections import UNUSABLE, Picture, Rows, Section, stored

SHOWN = 12  # uncertain inputs of a variant
LARGEST = 2000  # pixels of a side of a sheet: a page is for looking at
Fetch = Callable[[str], Any]


def uncertain_inputs(rows: Rows, fetch: Fetch | None) -> Section:
    """Test inputs with the largest entropy, of the first seed; as pictures if `fetch` has the data."""
    for run, entries in [found for row in rows for found in stored(row, "uncertain")][:1]:
        data = None
        note = "Entropy is in nats; epistemic is the part of it that more data could remove."
        try:
            data = fetch(str(run.settings.get("data"))) if fetch else None
        except Exception as error:  # no network, no file, no such name: the page comes first
            note += f" No pictures: {error!s:.200}"
        pictures = [_card(entry, data) for entry in entries[:SHOWN]]
        return Section(
            f"Most uncertain test inputs (seed {run.seed})", note=note, pictures=pictures
        )
    return Section("Most uncertain test inputs")


def _card(entry: Mapping[str, Any], data: Any) -> Picture:
    label, guess = (_class(entry[key], data) for key in ("label", "guess"))
    numbers = {key: number(entry.get(key)) for key in ("probability", "entropy", "epistemic")}
    chance = numbers.pop("probability")
    likely = "" if chance is None else f" ({100 * chance:.0f} %)"
    facts = [f"{key} {value:.2f}" for key, value in numbers.items() if value is not None]
    verdict = "✓ right" if label == guess else f"✗ guessed {guess}"
    try:
        low, high = data.pixel_range
        values = np.asarray(data.test.x[operator.index(entry["index"])], dtype=np.float64).reshape(
            data.pictures
        )
        picture = image((np.moveaxis(values, 0, -1) - low) / (high - low))
    except UNUSABLE:  # inputs that are no pictures
        picture = ""
    return Picture(picture, label, ", ".join([verdict + likely, *facts]))


def _class(value: Any, data: Any) -> str:
    names = getattr(data, "classes", None)
    return str(names[value]) if names and isinstance(value, int) else short(float(value))


def sheets(rows: Rows) -> Section:
    """Reconstructions, draws and traversals of auto-encoders, of the first seed."""
    parts = []
    for row in rows:
        for run, value in stored(row, "sheets")[:1]:
            pictures = [_sheet(entry) for entry in value]
            parts.append(Section(f"seed {run.seed}", pictures=pictures, row=row))
    return Section("Pictures", parts=parts)


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
