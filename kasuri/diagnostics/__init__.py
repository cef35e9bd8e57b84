"""What a trained posterior looks like inside, and whether its standard deviations have low rank.

`spectrum` tells structure from triviality, `truncate` replaces standard deviations by a low-rank
approximation, `tie` turns a mean-field network into a k-tied one of the rank `choose_rank` finds.
The callback `GradientSNR` watches training itself. `collapse_check` tells how much of a posterior is its
prior; `kasuri.diagnose` turns all of it into findings. `reference` knows true posteriors of
small problems.
"""

from kasuri.diagnostics import reference as reference
from kasuri.diagnostics.collapse import Collapse as Collapse
from kasuri.diagnostics.collapse import LayerState as LayerState
from kasuri.diagnostics.collapse import collapse_check as collapse_check
from kasuri.diagnostics.findings import Diagnosis as Diagnosis
from kasuri.diagnostics.findings import Finding as Finding
from kasuri.diagnostics.gradients import GradientSNR as GradientSNR
from kasuri.diagnostics.spectra import LayerSpectrum as LayerSpectrum
from kasuri.diagnostics.spectra import Spectrum as Spectrum
from kasuri.diagnostics.spectra import spectrum as spectrum
from kasuri.diagnostics.spectra import spectrum_table as spectrum_table
from kasuri.diagnostics.tying import choose_rank as choose_rank
from kasuri.diagnostics.tying import tie as tie
from kasuri.diagnostics.tying import truncate as truncate
