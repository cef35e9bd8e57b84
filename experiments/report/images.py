"""Pictures inside the page: what auto-encoders draw."""

import base64
import io
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from experiments.report.sections import Picture, Rows, Section, stored


def sheets(rows: Rows) -> Section:
    """Reconstructions, draws and traversals of auto-encoders, of the first seed."""
    parts = []
    for row in rows:
        for run, value in stored(row, "sheets")[:1]:
            pictures = [_sheet(entry) for entry in value]
            parts.append(Section(f"seed {run.seed}", pictures=pictures, row=row))
    return Section("Pictures", parts=parts)


def _sheet(entry: Mapping[str, Any]) -> Picture:
    """A sheet as an address that holds it as PNG; a result file has its bytes of grey, packed."""
    grey = np.frombuffer(zlib.decompress(base64.b64decode(entry["pixels"])), np.uint8)
    file = io.BytesIO()
    Image.fromarray(grey.reshape(entry["shape"])).save(file, "PNG")
    address = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return Picture(address, entry["title"], entry.get("caption", ""))
