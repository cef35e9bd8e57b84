"""Time all cases and write results/bench/*.json: `python -m benchmarks.run` from the repository.

Each number of threads gets a process of its own, because torch's thread pools keep what they have
once allocated. `python -m benchmarks.table` makes a page of the files.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks import environment, memory, peers
from benchmarks.cases import CASES, KINDS, TARGETS, network
from benchmarks.contenders import (
    LEARNING_RATE,
    NUM_DATA,
    PLAIN,
    PRIOR_SCALE,
)
from benchmarks.timing import Plan, measure

QUICK = Plan(rounds=2, warmup=1, burst=0.0)
DEFAULT_OUT = "results/bench"


def arguments() -> argparse.Namespace:
    """The command line; `--worker` is how this program calls itself."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=None, help=f"default {Plan.rounds}")
    parser.add_argument("--quick", action="store_true", help="2 rounds: to see that it runs")
    parser.add_argument("--only-kasuri", action="store_true", help="leave out other libraries")
    parser.add_argument("--out", type=Path, default=Path(DEFAULT_OUT))
    parser.add_argument("--worker", type=int, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rounds is not None and args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: at least one")
    if min(args.threads) < 1:
        parser.error(f"--threads {min(args.threads)}: at least one")
    return args


def main() -> None:
    args = arguments()
    if args.worker is not None:
        work(args, args.worker)
        return
    for threads in args.threads:
        command = [sys.executable, "-m", "benchmarks.run", *sys.argv[1:], "--worker", str(threads)]
        subprocess.run(command, check=True, cwd=environment.ROOT)


def plan_of(args: argparse.Namespace) -> Plan:
    """Quick or not, with the number of rounds that was asked for."""
    plan = QUICK if args.quick else Plan()
    return plan if args.rounds is None else Plan(args.rounds, plan.warmup, plan.burst)


def work(args: argparse.Namespace, threads: int) -> None:
    """All cases with this number of threads, one file per kind."""
    torch.set_num_threads(threads)
    plan = plan_of(args)
    missing = {} if args.only_kasuri else peers.available()[1]
    for kind in KINDS:
        names = [name for name in args.cases if CASES[name].kind == kind]
        if not names:
            continue
        result = {
            "kind": kind,
            "threads": torch.get_num_threads(),
            "settings": settings(args, plan),
            "versions": environment.versions(args.only_kasuri),
            **environment.commit(),
            "cpu": environment.processor(),
            "cores": os.cpu_count(),
            "load": environment.load(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "peers_missing": missing,
        }
        begin = time.perf_counter()
        result["cases"] = {name: time_case(name, plan, args.only_kasuri) for name in names}
        result["wall_seconds"] = round(time.perf_counter() - begin, 1)
        result["targets"] = targets(result["cases"])
        write(args.out / file_name(kind, threads), result)


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
            call = case.call(contender.build(network(case.network).build()))
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
    for contender, times in measured.items():
        print(f"  {contender:36} {times.median_ratio:6.2f}  {times.median_ms:9.2f} ms", flush=True)
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
    found = []
    for target in TARGETS:
        if target.case in cases:
            times = cases[target.case]["contenders"][target.contender]
            against_plain = target.reference == PLAIN.name
            ratio = times["median_ratio"] if against_plain else times["versus"][target.reference]
            found.append({**vars(target), "ratio": ratio, "reached": ratio <= target.bound})
    return found


def file_name(kind: str, threads: int) -> str:
    """step-1-thread.json, predict-2-threads.json, matrix-1-thread.json, vae-1-thread.json."""
    return f"{kind}-{threads}-thread{'s' if threads > 1 else ''}.json"


def write(path: Path, result: dict[str, Any]) -> None:
    """The whole file or none of it: a run that is interrupted leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(result, file, indent=2)
            file.write("\n")
        os.chmod(name, 0o644)  # mkstemp makes files for the owner alone
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    main()
