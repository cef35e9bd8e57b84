"""What the killed processes of test_kill.py run."""

import os
import signal
import sys

import torch

from tests.training.jobs import run

EPOCHS = 6


def train(folder, wound=None):
    """Train from wherever the folder's checkpoint is; die of the wound, if any."""
    torch.set_num_threads(1)
    signal.alarm(60)  # never outlive the test
    if wound is not None:
        WOUNDS[wound[0]](*wound[1:])
    run("local", folder, epochs=EPOCHS)
    sys.exit(0)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def before(name, file, count):
    """Die at the count-th call of a function of os for a file, before it does anything."""
    wound(name, file, count, lambda function, arguments: die())


def after(name, file, count):
    """Die at the count-th call of a function of os for a file, when it has done its work."""
    wound(name, file, count, lambda function, arguments: (function(*arguments), die()))


def half(file, count):
    """Die when a file is half written for the count-th time."""
    wound("fdopen", file, count, lambda function, arguments: Half(function(*arguments)))


def wound(name, file, count, act):
    function, calls = getattr(os, name), []

    def deadly(*arguments):
        subject = arguments[0]
        if isinstance(subject, int):
            subject = os.readlink(f"/proc/self/fd/{subject}")
        if file not in str(subject):
            return function(*arguments)
        calls.append(1)
        return act(function, arguments) if len(calls) == count else function(*arguments)

    setattr(os, name, deadly)


class Half:
    """A file that takes half of what it is given and then the process with it."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        die()


WOUNDS = {"before": before, "after": after, "half": half}
