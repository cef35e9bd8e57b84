"""What a comparison can show: one column per score, and which direction is better."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Column:
    """One score: where it is in a result, how it is called and shown, what is better.

    Attributes:
        key: in `metrics`, `validation` and `published` of a result.
        label: heading, with the unit.
        better: direction; a cost (parameters, seconds) has none and no best value is marked.
        explanation: one sentence for a reader who does not know the score.
        factor: shown number = stored number · factor.
        decimals: at most so many behind the point.
        target: the ideal value if `better` is "target".
    """

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
_CURVES = tuple(Column(key, **entry) for key, entry in _DATA["curves"].items())


def column(key: str) -> Column:
    """What is known of a score.

    Examples:
        >>> column("nll").better, column("gibbs_nll").label, column("of_mine").label
        ('lower', 'NLL of a draw (Gibbs)', 'of mine')
    """
    known = (found for found in (*COLUMNS, *_CURVES) if found.key == key)
    return next(known, Column(key, key.replace("_", " ")))
