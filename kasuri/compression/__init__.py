"""Compression: from a posterior to a network with fewer units, or with fewer weights.

The way of `kasuri.compress`, one file per step:

    probes            the example, inputs like it, and how a network is run on them
    units, coupling   which weights make and read a unit; which units of which layers go together
    importance        how much a posterior needs every unit of every layer
    decisions, search which units go at given levels; where to cut
    shrink            the masked network without its dead units, equal to it
    attention         attention with fewer heads
    kept_posterior    the posterior of what is left
    counting, report  what it is worth
"""

from kasuri.compression.compress import compress as compress
from kasuri.compression.counting import count as count
from kasuri.compression.report import CompressionReport as CompressionReport
from kasuri.compression.report import latency as latency
from kasuri.compression.search import Gap as Gap
from kasuri.compression.search import Loss as Loss
from kasuri.compression.search import PerLayer as PerLayer
