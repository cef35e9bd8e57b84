"""Freed memory stays with a process that trains."""

import subprocess
import sys

import pytest

COUNT = """
import resource, sys, torch
from experiments.memory import keep_freed_memory
torch.set_num_threads(1)
kept = keep_freed_memory() if sys.argv[1] == "kept" else True
def step():  # as in a network: many tensors at a time, all freed at the end
    return [torch.full((2**21,), 1.0) for _ in range(20)]
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the allocator of Linux")
def test_steps_take_no_new_pages_from_the_system():
    def faults(how):
        told = subprocess.run(
            [sys.executable, "-c", COUNT, how], capture_output=True, text=True, check=True
        ).stdout.split()
        if told[0] == "False":
            pytest.skip("another C library than glibc")
        return int(told[1])

    if not (usual := faults("given back")):
        pytest.skip("a system that does not count page faults")
    assert faults("kept") < usual / 10


def test_elsewhere_nothing_is_told(monkeypatch):
    from experiments.memory import keep_freed_memory

    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
