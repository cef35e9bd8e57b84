"""Make docs/benchmarks.md of the files in results/bench: `python -m benchmarks.table`.

Nothing on the page is typed by hand; what is not in the files is not on the page.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, KINDS, MEAN_FIELD
from benchmarks.contenders import PLAIN
from benchmarks.environment import ROOT, stored

Result = dict[str, Any]
NOTHING = "–"

INTRODUCTION = """# Benchmarks

Every number on this page comes from the JSON files in `results/bench`, written by
`python -m benchmarks.run`; `python -m benchmarks.table` made the page from them. Do not edit it.

A ratio is the time of a contender over the time of the plain network in the same round, the median
over rounds, with quartiles in brackets. Contenders take turns within one process, in an order that
rotates from round to round, with garbage collection off; each number of threads has a process of its
own. A training step is forward pass, mean negative log-likelihood plus KL over the number of
examples, backward pass and fused Adam, for all of them. A prediction is the mean of class
probabilities over the samples; for the plain network, that many forward passes.
"""

PEERS = """Other libraries are called through their public interfaces. Their objectives are not all
the same: bayesian-torch averages its KL over the weights of a layer where the others sum it, and
blitz estimates its KL from the drawn weights. torchbnn and blitz are timed on linear layers only.
"""


MATRIX = """The tables of matrix normals have two more references, from the same rounds: mean-field with
the same estimator, and mean-field with `local`. Sides are what the families choose by themselves
unless it is written there: full up to 1,024 and 32 common directions beyond for `MatrixNormal`, full
up to 512 and diagonal beyond for its relatives, whose entropy takes an eigenvalue problem a full side
at every step. Peak memory is what torch has allocated at the highest point of three training
steps: parameters, gradients, Adam's state, what is kept for the backward pass, and work space;
without the batch, and without what the BLAS and oneDNN allocate for themselves. It is counted
by torch's profiler, in a process of its own for each contender. Numbers are those that are trained.
"""


VAE = """The tables of auto-encoders have independent latent variables as a further reference, from the same
rounds. The plain auto-encoder has neither noise nor KL; it is the network that the others regularise.
The encoder's last layer has as many outputs as the family has numbers: of a full normal over 40
latent variables 860 instead of 80, which alone is a fifth of a step.
"""


def load(folder: Path) -> list[Result]:
    """All results, fewest threads first."""
    results = [stored(path) for path in sorted(folder.glob("*.json"))]
    return sorted(results, key=lambda result: (result["threads"], KINDS.index(result["kind"])))


def row(*cells: object) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def table(header: list[str], rows: list[list[object]], words: int = 1) -> str:
    """A Markdown table; all columns but the first `words` hold numbers and are set right."""
    rule = ["---" if index < words else "---:" for index in range(len(header))]
    return "\n".join([row(*header), row(*rule), *(row(*cells) for cells in rows)]) + "\n"


def threads_label(threads: int) -> str:
    """1 thread, 2 threads."""
    return f"{threads} thread{'s' if threads > 1 else ''}"


def ratio(times: dict[str, Any] | None) -> str:
    """Median ratio with its quartiles."""
    if times is None:
        return NOTHING
    low, high = times["ratio_quartiles"]
    return f"{times['median_ratio']:.2f} ({low:.2f}–{high:.2f})"


def case_section(name: str, results: list[Result]) -> str:
    """The table of one case: contenders by thread counts."""
    by_threads = {one["threads"]: one["cases"][name] for one in results if name in one["cases"]}
    if not by_threads:
        return ""
    columns = [case["contenders"] for case in by_threads.values()]
    contenders = list(dict.fromkeys(key for column in columns for key in column))
    fewest = next(iter(by_threads))
    further = further_columns(columns[0], threads_label(fewest))
    rows: list[list[object]] = []
    for contender in contenders:
        times = [column.get(contender) for column in columns]
        ratios = ["1" if contender == PLAIN.name else ratio(one) for one in times]
        rows.append(
            [contender, *ratios, *(cells.get(contender, NOTHING) for cells in further.values())]
        )
    header = ["contender", *(f"ratio, {threads_label(n)}" for n in by_threads), *further]
    title = next(iter(by_threads.values()))["title"]
    heading = f"## {title[0].upper()}{title[1:]}\n\n"
    left_out = sorted({key for case in by_threads.values() for key in case["failed"]})
    note = f"\nDid not run with this version of torch: {', '.join(left_out)}.\n" if left_out else ""
    return heading + table(header, rows) + note


def further_columns(contenders: Result, label: str) -> dict[str, dict[str, str]]:
    """What stands beside the ratios to the plain network: header to contender to cell."""
    columns: dict[str, dict[str, str]] = {}
    versus = {name: one["versus"] for name, one in contenders.items() if "versus" in one}
    versus.pop(PLAIN.name, None)
    if versus and MEAN_FIELD["local"] not in next(iter(versus.values())):
        for other in next(iter(versus.values())):
            columns[f"to {other}, {label}"] = {n: f"{one[other]:.2f}" for n, one in versus.items()}
    elif versus:
        same = {name: ratios[MEAN_FIELD[estimator(name)]] for name, ratios in versus.items()}
        local = {name: ratios[MEAN_FIELD["local"]] for name, ratios in versus.items()}
        columns[f"to mean-field, {label}"] = {name: f"{one:.2f}" for name, one in same.items()}
        columns[f"to mean-field local, {label}"] = {n: f"{one:.2f}" for n, one in local.items()}
    columns[f"ms, {label}"] = {name: f"{one['median_ms']:.2f}" for name, one in contenders.items()}
    for header, key in (("peak memory, MB", "peak_bytes"), ("million numbers", "parameters")):
        cells = {name: f"{one[key] / 1e6:.2f}" for name, one in contenders.items() if key in one}
        if cells:
            columns[header] = cells
    return columns


def estimator(contender: str) -> str:
    """The last word of a contender's name."""
    return contender.rpartition(" ")[2]


def targets_section(results: list[Result]) -> str:
    """Every target by thread counts, and whether it was reached."""
    counts = sorted({one["threads"] for one in results})
    found: dict[tuple[str, str, float, str], dict[int, Result]] = {}
    for one in results:
        for target in one["targets"]:
            reference = target.get("reference", PLAIN.name)
            key = (target["case"], target["contender"], target["bound"], reference)
            found.setdefault(key, {})[one["threads"]] = target
    rows: list[list[object]] = []
    for (case, contender, bound, reference), measured in found.items():
        cells = [verdict(measured.get(threads)) for threads in counts]
        times = "" if reference == PLAIN.name else f" x {reference}"
        rows.append([CASES[case].title, contender, f"≤ {bound:g}{times}", *cells])
    header = ["case", "contender", "target", *map(threads_label, counts)]
    return "## Targets\n\n" + table(header, rows, words=2)


def verdict(target: Result | None) -> str:
    """A measured ratio and whether it reaches the target."""
    if target is None:
        return NOTHING
    return f"{target['ratio']:.2f}, {'reached' if target['reached'] else '**not reached**'}"


def settings_section(results: list[Result]) -> str:
    """The command and what each file was made with."""
    commands = dict.fromkeys(one["settings"]["command"] for one in results)
    text = "## Settings\n\n```\n" + "\n".join(commands) + "\npython -m benchmarks.table\n```\n\n"
    rows: list[list[object]] = []
    for one in results:
        tree = {True: ", with changes", False: "", "unknown": ", state unknown"}[one["dirty"]]
        rows.append(
            [
                f"{one['kind']}, {threads_label(one['threads'])}",
                f"`{one['commit'][:10]}`{tree}",
                one["date"],
                one["settings"]["rounds"],
                f"{one['wall_seconds']:.0f}",
                NOTHING if one["load"] is None else f"{one['load']:.1f}",
            ]
        )
    text += (
        table(["file", "commit", "date (UTC)", "rounds", "seconds", "load before"], rows, words=3)
        + "\n"
    )
    for key, values in shared_facts(results).items():
        text += f"- {key}: {'; '.join(values)}\n"
    return text


def shared_facts(results: list[Result]) -> dict[str, list[str]]:
    """Settings that are normally the same in all files; if not, all values are shown."""
    facts: dict[str, dict[str, None]] = {}
    for one in results:
        values = {
            "processor": f"{one['cpu']}, {one['cores']} cores",
            "versions": ", ".join(f"{key} {value}" for key, value in one["versions"].items()),
            **{key.replace("_", " "): str(value) for key, value in one["settings"].items()},
        }
        values.pop("command")
        values.pop("rounds")
        for key, value in values.items():
            facts.setdefault(key, {})[value] = None
    return {key: list(values) for key, values in facts.items()}


def page(results: list[Result]) -> str:
    """The whole page."""
    sections = [INTRODUCTION, targets_section(results)]
    for kind in KINDS:
        if kind == "matrix" and any(one["kind"] == kind for one in results):
            sections.append(MATRIX)
        if kind == "vae" and any(one["kind"] == kind for one in results):
            sections.append(VAE)
        sections += [case_section(name, results) for name in CASES if CASES[name].kind == kind]
    if any(
        len(one["versions"]) > 3 for one in results
    ):  # kasuri, torch and python are always there
        sections.append(PEERS)
    sections.append(settings_section(results))
    return "\n".join(section for section in sections if section)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "results/bench")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/benchmarks.md")
    args = parser.parse_args()
    results = load(args.results)
    if not results:
        parser.error("no results: run `python -m benchmarks.run` first")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(page(results))


if __name__ == "__main__":
    main()
