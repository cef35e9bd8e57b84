"""What a trained posterior looks like inside, and whether its standard deviations have low rank.

`spectrum` tells structure from triviality, `truncate` replaces standard deviations by a low-rank
approximation, `tie` turns a mean-field network into a k-tied one of the rank `choose_rank` finds.
The callbacks `GradientSNR` and `ScaleDrift` watch training itself.
"""

from weft.diagnostics.drift import ScaleDrift
from weft.diagnostics.gradients import GradientSNR
from weft.diagnostics.ratios import snr
from weft.diagnostics.spectra import LayerSpectrum, Spectrum, spectrum, spectrum_table
from weft.diagnostics.truncation import scale_maps, truncate
from weft.diagnostics.tying import choose_rank, rank_losses, tie

__all__ = [
    "GradientSNR",
    "LayerSpectrum",
    "ScaleDrift",
    "Spectrum",
    "choose_rank",
    "rank_losses",
    "scale_maps",
    "snr",
    "spectrum",
    "spectrum_table",
    "tie",
    "truncate",
]
