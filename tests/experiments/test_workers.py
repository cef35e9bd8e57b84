"""Tasks in processes of their own, and how these end."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from experiments.results import ROOT
from experiments.workers import RunsFailed, run_tasks


def test_of_tasks_side_by_side_one_may_fail(tmp_path, capfd):
    tasks = {"bad": partial(divmod, 1, 0), "good": (tmp_path / "done").touch}
    for workers in (1, 2):
        with pytest.raises(RunsFailed, match="1 of 2"):
            run_tasks(tasks, workers, threads=1)
        assert "bad failed" in "".join(capfd.readouterr())
        (tmp_path / "done").unlink()


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
run_tasks({name: partial(sleep, Path(sys.argv[1], name)) for name in "abc"}, 2, 1)
"""


def wait(condition):
    for _ in range(900):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("not within 90 seconds")


def test_control_c_stops_all_workers_and_begins_no_other_task(tmp_path):
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
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        assert "KeyboardInterrupt" in running.communicate(timeout=60)[1]
    finally:
        running.kill()
        running.wait()
        running.stderr.close()
    assert all(file.with_suffix(".stopped").exists() for file in files)
    assert not (tmp_path / "c").exists()


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
