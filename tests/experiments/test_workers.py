"""Tasks in processes of their own, and how these end."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from experiments.results import ROOT
from experiments.workers import run_tasks


def test_of_tasks_side_by_side_one_may_fail(capsys):
    tasks = [("bad", partial(divmod, 1, 0)), ("good", partial(print, "done"))]
    with pytest.raises(ValueError, match="1 of 2"):
        run_tasks(tasks, workers=2, threads=1)
    assert "bad failed" in capsys.readouterr().out
    assert run_tasks([("good", partial(pow, 2, 5))], workers=1, threads=None) == [32]


def sleep(path):
    """A long task that notes its process, and at its end that it was asked to stop."""
    path.write_text(str(os.getpid()))
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        path.with_suffix(".stopped").touch()
        raise


PROGRAM = """
import sys
from functools import partial
from pathlib import Path
from experiments.workers import run_tasks
from tests.experiments.test_workers import sleep
run_tasks([(name, partial(sleep, Path(sys.argv[1], name))) for name in "ab"], 2, 1)
"""


def wait(condition):
    for _ in range(900):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("not within 90 seconds")


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (signal.SIGTERM, "Interrupted: 2 of 2 runs were stopped"),
        (signal.SIGKILL, ""),
        pytest.param(signal.SIGINT, "Interrupted: 2 of 2", marks=pytest.mark.thorough),
    ],
)
def test_workers_stop_and_end_with_the_process_that_started_them(tmp_path, number, told):
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a test run in the background of a shell would hand down that Ctrl-C is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        files = [tmp_path / name for name in "ab"]
        wait(lambda: all(file.exists() and file.read_text() for file in files))
        running.send_signal(number)  # to this process alone
        assert told in running.communicate(timeout=60)[1]
    finally:
        running.kill()
        running.wait()
        running.stderr.close()
    wait(lambda: all(file.with_suffix(".stopped").exists() for file in files))
    wait(lambda: not any(is_alive(int(file.read_text())) for file in files))


def is_alive(process):
    """Whether there is such a process, apart from one that has ended and nobody asked about."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False
    ).stdout
    return bool(state) and not state.startswith("Z")


COUNT = """
import resource, torch
from experiments.workers import prepare
torch.set_num_threads(1)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):  # as in a network: many tensors at a time, all freed at the end
        step = [torch.full((2**21,), 1.0) for _ in range(20)]
        del step
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
usual = faults()
prepare(1)
faults()
print(usual, faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the allocator of Linux")
def test_freed_memory_stays_with_a_process_that_trains():
    command = [sys.executable, "-c", COUNT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    usual, kept = map(int, done.stdout.split())
    if not usual:
        pytest.skip("a system that does not count page faults")
    assert kept < usual / 10
