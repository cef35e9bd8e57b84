"""SIGKILL, which no program can catch, at any moment: old checkpoint or new one, never half."""

import multiprocessing
import signal

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


@pytest.fixture(scope="module")
def start():
    """Makes processes out of one that has imported torch already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "kasuri", "torch._dynamo", "torch.optim"])

    def start(*arguments):
        process = context.Process(target=killed.train, args=arguments)
        process.start()
        process.join(60)
        return process.exitcode

    return start


def test_killed_while_it_writes(tmp_path, start):
    for wound, step in WOUNDS:
        assert start(tmp_path / "killed", wound) == -signal.SIGKILL
        there = checkpoint.exists(tmp_path / "killed")
        assert step == (checkpoint.read(tmp_path / "killed")["position"]["step"] if there else 0)
    leftovers = [one.name for one in (tmp_path / "killed").glob(".*")]
    assert leftovers  # what the dead could not remove does not disturb
    assert start(tmp_path / "killed") == 0
    run("local", tmp_path / "whole", epochs=killed.EPOCHS)
    assert differences(ending(tmp_path / "whole"), ending(tmp_path / "killed")) == []
