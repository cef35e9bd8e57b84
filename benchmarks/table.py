"""Make docs/benchmarks.md of the files in results/bench: `python -m benchmarks.table`.

Nothing on the page is typed by hand; what is not in the files is not on the page.
"""

from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, KINDS, MEAN_FIELD
from benchmarks.contenders import PLAIN
from benchmarks.results import ROOT, Result, stored, threads_label, versions_label
from experiments.report.text_tables import markdown_grid

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


def ratio(times: dict[str, Any] | None) -> str:
    if times is None:
        return NOTHING
    low, high = times["ratio_quartiles"]
    return f"{times['median_ratio']:.2f} ({low:.2f}–{high:.2f})"


def case_section(name: str, results: list[Result]) -> str:
    """The table of one case: contenders by thread counts."""
    by_threads = {file["threads"]: file["cases"][name] for file in results if name in file["cases"]}
    if not by_threads:
        return ""
    fewest, *_ = by_threads
    columns = [case["contenders"] for case in by_threads.values()]
    further = further_columns(columns[0], threads_label(fewest))
    rows = []
    for contender in dict.fromkeys(key for column in columns for key in column):
        times = [column.get(contender) for column in columns]
        ratios = ["1" if contender == PLAIN.name else ratio(time) for time in times]
        rows.append(
            [contender, *ratios, *(cells.get(contender, NOTHING) for cells in further.values())]
        )
    header = ["contender", *(f"ratio, {threads_label(n)}" for n in by_threads), *further]
    title = by_threads[fewest]["title"]
    heading = f"## {title[0].upper()}{title[1:]}\n\n"
    left_out = sorted({key for case in by_threads.values() for key in case["failed"]})
    note = f"\nDid not run with this version of torch: {', '.join(left_out)}.\n" if left_out else ""
    return f"{heading}{markdown_grid([header, *rows])}\n{note}"


def further_columns(contenders: Result, label: str) -> dict[str, dict[str, str]]:
    """What stands beside the ratios to the plain network: header to contender to cell."""
    columns: dict[str, dict[str, str]] = {}
    versus = {name: times["versus"] for name, times in contenders.items() if "versus" in times}
    versus.pop(PLAIN.name, None)
    for name, ratios in versus.items():
        if MEAN_FIELD["local"] in ratios:
            estimator = name.rpartition(" ")[2]
            cells = {
                "to mean-field": ratios[MEAN_FIELD[estimator]],
                "to mean-field local": ratios[MEAN_FIELD["local"]],
            }
        else:
            cells = {f"to {other}": value for other, value in ratios.items()}
        for header, value in cells.items():
            columns.setdefault(f"{header}, {label}", {})[name] = f"{value:.2f}"
    columns[f"ms, {label}"] = {name: f"{t['median_ms']:.2f}" for name, t in contenders.items()}
    for header, key in (("peak memory, MB", "peak_bytes"), ("million numbers", "parameters")):
        texts = {name: f"{t[key] / 1e6:.2f}" for name, t in contenders.items() if key in t}
        if texts:
            columns[header] = texts
    return columns


def targets_section(results: list[Result]) -> str:
    """Every target by thread counts, and whether it was reached."""
    counts = sorted({file["threads"] for file in results})
    by_target: dict[tuple[str, str, float, str], dict[int, Result]] = {}
    for file in results:
        for target in file["targets"]:
            reference = target.get("reference", PLAIN.name)
            key = (target["case"], target["contender"], target["bound"], reference)
            by_target.setdefault(key, {})[file["threads"]] = target
    rows = []
    for (case, contender, bound, reference), measured in by_target.items():
        cells = [verdict(measured.get(threads)) for threads in counts]
        times = "" if reference == PLAIN.name else f" x {reference}"
        rows.append([CASES[case].title, contender, f"≤ {bound:g}{times}", *cells])
    header = ["case", "contender", "target", *map(threads_label, counts)]
    return f"## Targets\n\n{markdown_grid([header, *rows], words=2)}\n"


def verdict(target: Result | None) -> str:
    if target is None:
        return NOTHING
    return f"{target['ratio']:.2f}, {'reached' if target['reached'] else '**not reached**'}"


def settings_section(results: list[Result]) -> str:
    """The command and what each file was made with."""
    commands = dict.fromkeys(file["settings"]["command"] for file in results)
    text = "## Settings\n\n```\n" + "\n".join(commands) + "\npython -m benchmarks.table\n```\n\n"
    rows = []
    for file in results:
        tree = {True: ", with changes", False: "", "unknown": ", state unknown"}[file["dirty"]]
        rows.append(
            [
                f"{file['kind']}, {threads_label(file['threads'])}",
                f"`{file['commit'][:10]}`{tree}",
                file["date"],
                file["settings"]["rounds"],
                f"{file['wall_seconds']:.0f}",
                NOTHING if file["load"] is None else f"{file['load']:.1f}",
            ]
        )
    header = ["file", "commit", "date (UTC)", "rounds", "seconds", "load before"]
    facts: dict[str, dict[str, None]] = {}  # normally the same in all files; if not, all are shown
    for file in results:
        settings = {key.replace("_", " "): str(value) for key, value in file["settings"].items()}
        shared = {
            "processor": f"{file['cpu']}, {file['cores']} cores",
            "versions": versions_label(file),
            **{key: settings[key] for key in settings if key not in ("command", "rounds")},
        }
        for key, value in shared.items():
            facts.setdefault(key, {})[value] = None
    lines = "".join(f"- {key}: {'; '.join(values)}\n" for key, values in facts.items())
    return f"{text}{markdown_grid([header, *rows], words=3)}\n\n{lines}"


def page(results: list[Result]) -> str:
    sections = [INTRODUCTION, targets_section(results)]
    for kind in KINDS:
        if any(file["kind"] == kind for file in results):
            sections.append({"matrix": MATRIX, "vae": VAE}.get(kind, ""))
        sections += [case_section(name, results) for name in CASES if CASES[name].kind == kind]
    if any(len(file["versions"]) > 3 for file in results):  # more than kasuri, torch and python
        sections.append(PEERS)
    sections.append(settings_section(results))
    return "\n".join(filter(None, sections))


def main(folder: Path = ROOT / "results/bench", out: Path = ROOT / "docs/benchmarks.md") -> None:
    files = [stored(path) for path in folder.glob("*.json")]
    ordered = sorted(files, key=lambda file: (file["threads"], KINDS.index(file["kind"])))
    out.write_text(page(ordered))


if __name__ == "__main__":
    main()
