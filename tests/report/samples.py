"""Results to show: stored ones of this repository, and small ones made for a test."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert(1)</script>"
# experiments that have every kind of figure between them
STORED = (
    "results/demo/digits",  # curves, reliability, layers
    "results/quality/uci-energy",  # intervals, several seeds
    "results/k-tied/truncated-mnist-mlp",  # spectra, published values
    "results/k-tied/convergence-short",  # convergence
    "results/compression/lenet300-short",  # frontier
    "results/tempering/mnist",  # sweep, findings
    "results/vae/static-mnist-9-short",  # sheets, differences
)


def stored(*folders):
    """Result files as they are."""
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.json"))]
    runs = [json.loads(file.read_text()) for file in files]
    return [run for run in runs if "experiment" in run]


def run(variant="v", seed=0, *, experiment="e", **sections):
    """A result with these sections only."""
    return {
        "format": 1,
        "experiment": experiment,
        "variant": variant,
        "seed": seed,
        **sections,
    }


def write(folder, runs):
    """Write results where the program would."""
    for one in runs:
        path = folder / one["experiment"] / one["variant"] / f"{one['seed']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(one))
    return folder


def with_text(value, text):
    """A copy in which every text below the top level is another one, keys of scores apart."""
    if isinstance(value, dict):
        return {key: with_text(one, text) for key, one in value.items()}
    if isinstance(value, list):
        return [with_text(one, text) for one in value]
    return text if isinstance(value, str) else value
