"""What a trained posterior looks like inside, and whether its standard deviations have low rank.

`spectrum` tells structure from triviality, `truncate` replaces standard deviations by a low-rank
approximation, `tie` turns a mean-field network into a k-tied one of the rank `choose_rank` finds.
The callbacks `GradientSNR` and `ScaleDrift` watch training itself. `collapse_check` tells how much of a
posterior is its prior, `k_hat` how far it is from the truth; `kasuri.diagnose` turns all of it into findings.
"""

from kasuri.diagnostics.collapse import Collapse, LayerState, collapse_check
from kasuri.diagnostics.drift import ScaleDrift
from kasuri.diagnostics.finding_rules import Finding
from kasuri.diagnostics.findings import Diagnosis
from kasuri.diagnostics.gradients import GradientSNR, snr
from kasuri.diagnostics.reference.pareto import k_hat, posterior_k_hat
from kasuri.diagnostics.spectra import LayerSpectrum, Spectrum, spectrum, spectrum_table
from kasuri.diagnostics.truncation import scale_maps, truncate
from kasuri.diagnostics.tying import choose_rank, rank_losses, tie

__all__ = [
    "Collapse",
    "Diagnosis",
    "Finding",
    "GradientSNR",
    "LayerSpectrum",
    "LayerState",
    "ScaleDrift",
    "Spectrum",
    "choose_rank",
    "collapse_check",
    "k_hat",
    "posterior_k_hat",
    "rank_losses",
    "scale_maps",
    "snr",
    "spectrum",
    "spectrum_table",
    "tie",
    "truncate",
]
