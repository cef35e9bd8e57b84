"""Several processes: torch's own DistributedDataParallel around the objective.

Every process sees its share of each batch and draws its own weights; gradients are averaged, so
the KL, which is the same everywhere, counts once. Process 0 alone writes files.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_LETTING_GO = 0.1  # seconds


@dataclass(frozen=True)
class Processes:
    """Which process this is, of how many."""

    rank: int = 0
    world: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process; all of them must ask at the same moment."""
        return self.average([float(flag)])[0] > 0

    def average(self, values: list[float]) -> list[float]:
        """Mean over processes."""
        if self.world == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return list((total / self.world).tolist())

    def level(self, module: nn.Module) -> None:
        """Give a module's buffers their mean over processes."""
        if self.world > 1:
            for buffer in module.buffers():
                dist.all_reduce(buffer)
                buffer /= self.world

    def is_lost(self, error: RuntimeError) -> bool:
        """Whether an error comes from talking to the other processes."""
        words = str(error)
        talking = isinstance(error, dist.DistError) or "gloo" in words or "NCCL" in words
        return self.world > 1 and talking

    def from_first(self, compute: Callable[[], Any]) -> Any:
        """What process 0 computes, in every process."""
        values = [compute() if self.is_first else None]
        if self.world > 1:
            dist.broadcast_object_list(values, src=0)
        return values[0]


def processes() -> Processes:
    """The processes of the group that is running, if any."""
    if dist.is_available() and dist.is_initialized():
        return Processes(dist.get_rank(), dist.get_world_size())
    return Processes()


def parallel(objective: nn.Module, group: Processes) -> nn.Module:
    """The objective with averaged gradients; itself in a single process."""
    if group.world == 1:
        return objective
    device = next(objective.parameters()).device
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(objective, device_ids=ids)


@contextmanager
def started_by_torchrun() -> Iterator[Processes]:
    """Join the group that `torchrun` describes in the environment, and leave it afterwards.

    gloo on processors, nccl on graphics cards (one card per process). Without torchrun: alone.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Processes()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend)
    try:
        yield processes()
        dist.barrier()  # a process that leaves early can bring down one that still talks to it
        # gloo's threads let go of tensors after a collective has returned, and outlive the group if there
        # was a DistributedDataParallel; torch aborts if the interpreter ends at that moment
        time.sleep(_LETTING_GO)
    finally:
        dist.destroy_process_group()
