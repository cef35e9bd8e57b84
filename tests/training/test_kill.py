"""SIGKILL, which no program can catch, at any moment: old checkpoint or new one, never half."""

import multiprocessing
import os
import random
import signal
import time

import pytest

from kasuri.training import checkpoint
from tests.training import killed
from tests.training.jobs import differences, ending, run

# how a process dies, and the step of the checkpoint that it leaves: four steps per epoch, each
# epoch is saved
WOUNDS = [
    (("before", "fsync", "checkpoint.pt", 1), 0),
    (("half", "checkpoint.pt", 2), 4),
    (("half", "history.csv", 1), 4),
    (("before", "replace", "checkpoint.pt", 1), 4),
    (("before", "replace", "history.csv", 1), 4),
    (("after", "replace", "checkpoint.pt", 2), 12),
    (("after", "replace", "history.csv", 1), 12),
    (("after", "fsync", "checkpoint.pt", 2), 16),
]
RANDOM_KILLS = 4


@pytest.fixture(scope="module")
def processes():
    """Makes processes out of one that has imported torch already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "kasuri", "torch._dynamo", "torch.optim"])

    def start(*arguments):
        process = context.Process(target=killed.train, args=arguments)
        process.start()
        return process

    return start


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run("local", folder, epochs=killed.EPOCHS)
    return ending(folder)


def test_killed_while_it_writes(tmp_path, processes, whole):
    for wound, step in WOUNDS:
        process = processes(tmp_path, wound)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        there = checkpoint.exists(tmp_path)
        assert step == (checkpoint.read(tmp_path)["position"]["step"] if there else 0)
    leftovers = [one.name for one in tmp_path.iterdir() if one.name.startswith(".")]
    assert leftovers  # what the dead could not remove does not disturb
    process = processes(tmp_path)
    process.join(60)
    assert process.exitcode == 0
    assert differences(whole, ending(tmp_path)) == []


def test_killed_at_random_moments(tmp_path, processes, whole):
    moments, lives, steps = random.Random(time.time_ns()), 0, [0]
    while True:
        process = processes(tmp_path)
        lives += 1
        if lives <= RANDOM_KILLS:
            if lives % 4:  # else it dies on its first steps
                wait_for_progress(process, tmp_path)
            process.join(moments.uniform(0, 0.08))
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
        process.join(60)
        if checkpoint.exists(tmp_path):  # and then it can be read
            steps.append(checkpoint.read(tmp_path)["position"]["step"])
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert lives >= 4
    assert steps == sorted(steps)
    assert differences(whole, ending(tmp_path)) == []


def wait_for_progress(process, folder):
    """Until the process has replaced the checkpoint once, or ended."""
    path = folder / checkpoint.NAME
    first = path.stat().st_mtime_ns if path.exists() else None
    while process.is_alive():
        if path.exists() and path.stat().st_mtime_ns != first:
            return
        time.sleep(0.001)
