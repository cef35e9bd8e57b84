"""Time all cases and write results/bench/*.json: `python -m benchmarks.run` from the repository.

Each number of threads gets a process of its own, because torch's thread pools keep what they have
once allocated. `python -m benchmarks.table` makes a page of the files.
"""

import argparse
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import memory, peers, results
from benchmarks.cases import CASES, KINDS, TARGETS
from benchmarks.contenders import LEARNING_RATE, NETWORKS, NUM_DATA, PLAIN, PRIOR_SCALE
from benchmarks.timing import QUICK, Plan, measure


def main() -> None:
    """The command line; `--worker` is how this program calls itself."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=None, help=f"default {Plan.rounds}")
    parser.add_argument("--quick", action="store_true", help="2 rounds: to see that it runs")
    parser.add_argument("--only-kasuri", action="store_true", help="leave out other libraries")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("--worker", type=int, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        work(args, args.worker)
        return
    for threads in args.threads:
        command = [sys.executable, "-m", "benchmarks.run", *sys.argv[1:], "--worker", str(threads)]
        subprocess.run(command, check=True, cwd=results.ROOT)


def work(args: argparse.Namespace, threads: int) -> None:
    """All cases with this number of threads, one file per kind."""
    torch.set_num_threads(threads)
    plan = QUICK if args.quick else Plan()
    plan = plan if args.rounds is None else replace(plan, rounds=args.rounds)
    missing = {} if args.only_kasuri else peers.available()[1]
    for kind in KINDS:
        names = [name for name in args.cases if CASES[name].kind == kind]
        if not names:
            continue
        result = {
            "kind": kind,
            "threads": torch.get_num_threads(),
            "settings": settings(args, plan),
            **results.about(args.only_kasuri),
            "peers_missing": missing,
        }
        begin = time.perf_counter()
        result["cases"] = {name: time_case(name, plan, args.only_kasuri) for name in names}
        result["wall_seconds"] = round(time.perf_counter() - begin, 1)
        result["targets"] = targets(result["cases"])
        label = results.threads_label(threads).replace(" ", "-")
        results.write(args.out / f"{kind}-{label}.json", result)


def settings(args: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """What the numbers depend on besides the machine, and the command that makes them again."""
    options = ["--quick"] if args.quick else []
    options += ["--only-kasuri"] if args.only_kasuri else []
    options += [] if args.rounds is None else ["--rounds", str(args.rounds)]
    options += [] if args.cases == list(CASES) else ["--cases", *args.cases]
    options += [] if args.threads == [1, 2] else ["--threads", *map(str, args.threads)]
    return {
        "command": " ".join(["python -m benchmarks.run", *options]),
        "rounds": plan.rounds,
        "warmup_rounds": plan.warmup,
        "baseline_seconds_per_turn": plan.burst,
        "optimizer": f"Adam(lr={LEARNING_RATE}, fused=True)",
        "prior": f"Normal({PRIOR_SCALE})",
        "num_data": NUM_DATA,
        "dtype": "float32",
    }


def time_case(name: str, plan: Plan, only_kasuri: bool) -> dict[str, Any]:
    """Times of all contenders in one case."""
    case = CASES[name]
    begin = time.perf_counter()
    calls, failed = {}, {}
    for contender in case.contenders(only_kasuri):
        torch.manual_seed(0)
        try:
            call = case.call(contender.build(NETWORKS[case.network].build()))
            case.check(call())
        except Exception as error:
            if not contender.peer:
                raise
            # a peer may not fit this torch; messages can name paths, which do not go into the file
            failed[contender.name] = type(error).__name__
            print(f"{contender.name} left out: {error!r}", file=sys.stderr)
            continue
        calls[contender.name] = call
    measured, repeats = measure(calls, PLAIN.name, plan, case.references)
    memories = {key: memory.of_contender(name, key) for key in calls if case.kind == "matrix"}
    seconds = round(time.perf_counter() - begin, 1)
    print(f"{name}, {torch.get_num_threads()} thread(s), {seconds} s", flush=True)
    for title, times in measured.items():
        print(f"  {title:36} {times.median_ratio:6.2f}  {times.median_ms:9.2f} ms", flush=True)
    return {
        "title": case.title,
        "network": case.network,
        "batch": case.batch,
        "samples": case.samples,
        "calls_per_turn": repeats,
        "wall_seconds": seconds,
        "failed": failed,
        "contenders": {
            key: {**times.as_json(), **memories.get(key, {})} for key, times in measured.items()
        },
    }


def targets(cases: dict[str, Any]) -> list[dict[str, Any]]:
    """Every target of these cases, with what was measured and whether that is enough."""
    rows = []
    for target in TARGETS:
        if target.case in cases:
            times = cases[target.case]["contenders"][target.contender]
            against_plain = target.reference == PLAIN.name
            ratio = times["median_ratio"] if against_plain else times["versus"][target.reference]
            rows.append({**vars(target), "ratio": ratio, "reached": ratio <= target.bound})
    return rows


if __name__ == "__main__":
    main()
