"""Time all cases and write results/bench/*.json: `python -m benchmarks.run` from the repository.

Each number of threads needs a process of its own, because torch's thread pools keep what they have
once allocated; `make bench` starts them. `python -m benchmarks.table` makes a page of the files.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import memory, results
from benchmarks.cases import CASES, KINDS, TARGETS
from benchmarks.contenders import LEARNING_RATE, NETWORKS, NUM_DATA, PLAIN, PRIOR_SCALE
from benchmarks.timing import Plan, measure


def main(arguments: Sequence[str]) -> None:
    """All cases that are asked for, one file per kind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=results.ROOT / "results/bench")
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    plan = Plan(rounds=args.rounds)
    settings = {
        "command": " ".join(["python -m benchmarks.run", *arguments]),
        "rounds": plan.rounds,
        "warmup_rounds": plan.warmup,
        "baseline_seconds_per_turn": plan.burst,
        "optimizer": f"Adam(lr={LEARNING_RATE}, fused=True)",
        "prior": f"Normal({PRIOR_SCALE})",
        "num_data": NUM_DATA,
        "dtype": "float32",
    }
    for kind in KINDS:
        names = [name for name in args.cases if CASES[name].kind == kind]
        if names:
            result = results.measured(settings, partial(time_cases, names, plan))
            result |= {"kind": kind, "threads": args.threads}
            label = results.threads_label(args.threads).replace(" ", "-")
            results.write(args.out / f"{kind}-{label}.json", result)


def time_cases(names: Sequence[str], plan: Plan) -> results.Result:
    cases = {name: time_case(name, plan) for name in names}
    return {"cases": cases, "targets": targets(cases)}


def time_case(name: str, plan: Plan) -> dict[str, Any]:
    case = CASES[name]
    begin = time.perf_counter()
    calls, failed = {}, {}
    for contender in case.contenders():
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
        print(f"  {title:36} {times['median_ratio']:6.2f}  {times['median_ms']:9.2f} ms")
    return {
        "title": case.title,
        "network": case.network,
        "batch": case.batch,
        "samples": case.samples,
        "calls_per_turn": repeats,
        "wall_seconds": seconds,
        "failed": failed,
        "contenders": {key: times | memories.get(key, {}) for key, times in measured.items()},
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
    main(sys.argv[1:])
