"""What the posterior really is, on problems small enough to know, and how far a family is from it.

`conjugate` is exact where the network is linear in its random weights; `nuts` samples anything small (extra
`reference`); `langevin` is the simplest sampler there is. `distances` puts families beside the truth.
"""

from kasuri.diagnostics.reference.conjugate import conjugate
from kasuri.diagnostics.reference.distance import Distance, distance, distances
from kasuri.diagnostics.reference.joint import LogJoint, Truth
from kasuri.diagnostics.reference.langevin import langevin
from kasuri.diagnostics.reference.nuts import nuts

__all__ = [
    "Distance",
    "LogJoint",
    "Truth",
    "conjugate",
    "distance",
    "distances",
    "langevin",
    "nuts",
]
