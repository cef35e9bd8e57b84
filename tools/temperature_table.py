"""The table of two ways to choose the temperature, from the file that `benchmarks.temperature` writes."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from kasuri.prediction.metrics import mean_sem


def temperature_table(path: Path) -> str:
    """A row for each data set and length: test NLL of both ways, and the CPU seconds of a run."""
    rows = json.loads(path.read_text())["rows"]
    lines = [
        "| | steps | seeds | one run (`kasuri.fit`) | halving | temperatures of halving | CPU seconds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for data, epochs in dict.fromkeys((row["data"], row["epochs"]) for row in rows):
        same = [row for row in rows if (row["data"], row["epochs"]) == (data, epochs)]
        one, other = ([row for row in same if row["way"] == way] for way in ("follow", "halving"))
        found = [row["temperature"] for row in other]
        seconds = [sum(row["cpu_seconds"] for row in part) / len(part) for part in (one, other)]
        cells = (
            data.replace("-", " "),
            f"{same[0]['steps']:,}",
            str(len(one)),
            _mean([row["nll"] for row in one]),
            _mean([row["nll"] for row in other]),
            f"{min(found):.2g} to {max(found):.2g}",
            " / ".join(f"{one:.1f}" for one in seconds),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> str:
    mean, error = mean_sem(torch.tensor(values))
    return f"{mean:.3f} ± {error:.3f}"
