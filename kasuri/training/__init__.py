"""Training: `kasuri.fit`, and what may be given to it."""

from kasuri.training.augment import Augmentation as Augmentation
from kasuri.training.augment import compose as compose
from kasuri.training.augment import crop as crop
from kasuri.training.augment import flip as flip
from kasuri.training.batches import Batches as Batches
from kasuri.training.callbacks import Callback as Callback
from kasuri.training.callbacks import Clip as Clip
from kasuri.training.checkpoint import CheckpointError as CheckpointError
from kasuri.training.distributed import Processes as Processes
from kasuri.training.distributed import processes as processes
from kasuri.training.distributed import started_by_torchrun as started_by_torchrun
from kasuri.training.fit import Fitted as Fitted
from kasuri.training.fit import fit as fit
from kasuri.training.interrupts import Interrupted as Interrupted
from kasuri.training.many import fit_many as fit_many
from kasuri.training.nonfinite import NonFiniteLoss as NonFiniteLoss
from kasuri.training.optimisers import MakeOptimiser as MakeOptimiser
from kasuri.training.optimisers import MakeScheduler as MakeScheduler
from kasuri.training.optimisers import constant as constant
from kasuri.training.optimisers import cosine as cosine
from kasuri.training.validation import Validation as Validation
