"""Published test log-likelihoods of the UCI tables, nats per example in the target's own unit.

COLUMNS: Table 1 of the radial-directional paper, which takes VI, PBP, Dropout and VMG from their papers.
± of Dropout is most likely a standard deviation, of the others a standard error. RDP is left out of
comparisons: see `weft.experiments.rdp_audit`.
"""

from collections.abc import Mapping

Value = tuple[float, float]

METHODS = ("VI", "PBP", "Dropout", "VMG")
_TABLE: Mapping[str, tuple[Value, ...]] = {
    "boston": ((-2.90, 0.07), (-2.57, 0.09), (-2.46, 0.25), (-2.46, 0.09), (-2.60, 0.03)),
    "concrete": ((-3.33, 0.02), (-3.16, 0.02), (-3.04, 0.09), (-3.01, 0.03), (-2.61, 0.02)),
    "energy": ((-2.39, 0.03), (-2.04, 0.02), (-1.99, 0.09), (-1.06, 0.03), (-1.18, 0.03)),
    "kin8nm": ((0.90, 0.01), (0.90, 0.01), (0.95, 0.03), (1.10, 0.01), (2.17, 0.00)),
    "naval": ((3.37, 0.12), (3.73, 0.01), (3.80, 0.05), (2.46, 0.00), (3.05, 0.01)),
    "power": ((-2.89, 0.01), (-2.84, 0.01), (-2.80, 0.15), (-2.82, 0.01), (-0.14, 0.01)),
    "protein": ((-2.99, 0.01), (-2.97, 0.00), (-2.89, 0.01), (-2.84, 0.00), (1.38, 0.01)),
    "wine": ((-0.98, 0.01), (-0.97, 0.01), (-0.93, 0.06), (-0.95, 0.01), (-0.45, 0.00)),
    "yacht": ((-3.43, 0.16), (-1.63, 0.02), (-1.55, 0.12), (-1.30, 0.02), (-2.36, 0.04)),
}
COLUMNS: Mapping[str, Mapping[str, Value]] = {
    table: dict(zip((*METHODS, "RDP"), row, strict=True)) for table, row in _TABLE.items()
}
