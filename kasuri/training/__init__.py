"""Training: a loop to read in one sitting, and what stands beside it."""

from kasuri.training.augment import Augmentation, compose, crop, flip
from kasuri.training.batches import Batches
from kasuri.training.defaults import MakeScheduler, constant, cosine
from kasuri.training.distributed import Processes, processes, started_by_torchrun

__all__ = [
    "Augmentation",
    "Batches",
    "MakeScheduler",
    "Processes",
    "compose",
    "constant",
    "cosine",
    "crop",
    "flip",
    "processes",
    "started_by_torchrun",
]
