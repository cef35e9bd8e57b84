"""What a comparison can show: one column per score, and which direction is better."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Column:
    """One score: its key in a result, and an entry of score_columns.toml, which explains the fields."""

    key: str
    label: str
    better: Literal["higher", "lower", "target", ""] = ""
    explanation: str = ""
    factor: float = 1.0
    decimals: int = 4
    target: float = 0.0

    @property
    def title(self) -> str:
        """The label as a heading of its own."""
        return self.label[0].upper() + self.label[1:]

    def loss(self, value: float) -> float:
        """How bad a value is: the least is the best."""
        if self.better == "target":
            return abs(value - self.target)
        return -value if self.better == "higher" else value


_DATA = tomllib.loads((Path(__file__).parent / "score_columns.toml").read_text(encoding="utf-8"))
COLUMNS = tuple(Column(key, **entry) for key, entry in _DATA["table"].items())
_KNOWN = {one.key: one for one in COLUMNS}
_KNOWN |= {key: Column(key, **entry) for key, entry in _DATA["curves"].items()}


def column(key: str) -> Column:
    """What is known of a score; of others, a name."""
    return _KNOWN.get(key) or Column(key, key.replace("_", " "))
