"""Compression: from a posterior to a plain network with fewer units.

The way of `kasuri.compress`, one file per step:

    layers, graph     which weights make and read a unit; which units of which layers go together
    criteria, peeling how much a posterior needs every unit of every layer
    thresholds        where to cut: the largest gap, or by bisection on a validation loss
    decisions         which units go: where the rules of all layers agree
    masking           the same network with those weights set to 0
    constants, plans, shrinking    the masked network without its dead units, equal to it
    heads             attention with fewer heads
    slicing           posteriors of what is left
    counting, latency, bits, quantising, tuning    what it is worth, and what can be done next
"""
