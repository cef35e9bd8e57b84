"""What a trained posterior looks like inside, and whether its standard deviations have low rank.

`spectrum` tells structure from triviality, `truncate` replaces standard deviations by a low-rank
approximation, `tie` turns a mean-field network into a k-tied one of the rank `choose_rank` finds.
The callbacks `GradientSNR` and `ScaleDrift` watch training itself. `collapse_check` tells how much of a
posterior is its prior; `kasuri.diagnose` turns all of it into findings. `reference` knows true posteriors of
small problems.
"""

from kasuri.diagnostics import reference
from kasuri.diagnostics.collapse import Collapse, LayerState, collapse_check
from kasuri.diagnostics.findings import Diagnosis, Finding
from kasuri.diagnostics.recorders import GradientSNR, ScaleDrift, snr
from kasuri.diagnostics.spectra import LayerSpectrum, Spectrum, spectrum, spectrum_table
from kasuri.diagnostics.tying import choose_rank, scale_maps, tie, truncate

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
    "reference",
    "scale_maps",
    "snr",
    "spectrum",
    "spectrum_table",
    "tie",
    "truncate",
]
