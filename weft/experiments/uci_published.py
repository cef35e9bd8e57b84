"""Published test log-likelihoods of the UCI tables, nats per example in the target's own unit.

COLUMNS: Table 1 of the radial-directional paper, which takes VI, PBP, Dropout and VMG from their papers.
± of Dropout is most likely a standard deviation, of the others a standard error. RDP is left out of
comparisons: see `weft.experiments.rdp_audit`.

RERUNS: what public repositories report: dropout with a hundred times as many epochs (logs of the dropout
paper's authors), the others from the readme of uncertainty-baselines, whose splits and networks are not ours.
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

RERUN_METHODS = ("dropout, long", "VI", "refined VI", "PBP-MV", "HS-BNN", "ensemble of 10")
_RERUN_TABLE: Mapping[str, tuple[float, ...]] = {
    "boston": (-2.40, -3.12, -2.94, -2.54, -2.54, -6.11),
    "concrete": (-2.94, -3.22, -3.08, -3.04, -3.09, -3.20),
    "energy": (-1.21, -0.93, -0.75, -1.01, -2.66, -0.61),
    "kin8nm": (1.14, 1.03, 1.06, 1.28, 1.12, 1.17),
    "naval": (4.45, 6.12, 6.33, 4.85, 5.52, 5.17),
    "power": (-2.81, -2.85, -2.83, -2.78, -2.81, -3.18),
    "protein": (-2.87, -2.93, -2.92, -2.77, -2.89, -3.12),
    "wine": (-0.93, -1.00, -0.97, -0.97, -0.95, -0.97),
    "yacht": (-1.25, -2.01, -1.68, -1.64, -2.33, -0.73),
}
RERUNS: Mapping[str, Mapping[str, float]] = {
    table: dict(zip(RERUN_METHODS, row, strict=True)) for table, row in _RERUN_TABLE.items()
}
