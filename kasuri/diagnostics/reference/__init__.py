"""What the posterior really is, on problems small enough to know, and how far a family is from it.

`conjugate` is exact where the network is linear in its random weights; `nuts` samples anything small (extra
`reference`); `langevin` is the simplest sampler there is. `distances` puts families beside the truth.
`wide_optimum` is the best posterior of a wide network in closed form.
"""

from kasuri.diagnostics.reference.distance import Distance, distance, distances
from kasuri.diagnostics.reference.joint import LogJoint, Truth
from kasuri.diagnostics.reference.truths import conjugate, langevin, nuts
from kasuri.diagnostics.reference.wide import WideOptimum, wide_optimum

__all__ = [
    "Distance",
    "LogJoint",
    "Truth",
    "WideOptimum",
    "conjugate",
    "distance",
    "distances",
    "langevin",
    "nuts",
    "wide_optimum",
]
