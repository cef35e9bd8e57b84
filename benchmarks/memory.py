"""Peak memory of training, counted where torch allocates.

From building the network to the end of the third training step: parameters, gradients, Adam's state,
what the step keeps for its backward pass and what it works in, at the moment when together they
are most. Batches do not count, nor does what the BLAS and oneDNN allocate for themselves. Each
contender has a process of its own: buffers that one leaves behind for reuse would make the next look
smaller. The count is the same at every run; the size of the process is not, and the habits of its
allocator would hide small differences.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.cases import CASES
from benchmarks.contenders import NETWORKS, Run

STEPS = 3  # Adam's state comes with the first, and with the second all buffers have been made


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that `work` has allocated and not yet freed at any one time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = work()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    del kept  # not earlier: its memory is part of the count
    return max(accumulate(size for _, size in sorted(changes, key=lambda change: change[0])))


def training(case: str, contender: str) -> dict[str, int]:
    """Peak bytes of a contender's training in a case, and how many numbers it trains."""
    work = CASES[case]
    build = next(ours.build for ours in work.ours if ours.name == contender)
    xs, ys = work.batches()
    runs: list[Run] = []

    def train() -> None:
        runs.append(build(NETWORKS[work.network].build()))
        for x, y in zip(xs[:STEPS], ys[:STEPS], strict=True):
            work.check(runs[0].step(x, y))

    torch.manual_seed(0)
    peak = peak_bytes(train)
    return {"peak_bytes": peak, "parameters": sum(p.numel() for p in runs[0].net.parameters())}


def of_contender(case: str, contender: str) -> dict[str, int]:
    """What `training` finds in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, torch.set_num_threads, (1,)) as pool:
        return pool.submit(training, case, contender).result()
