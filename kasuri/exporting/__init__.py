"""Networks out of the door: files that PyTorch alone, or onnxruntime alone, can run."""

from kasuri.exporting.export import Exported as Exported
from kasuri.exporting.export import export as export
from kasuri.prediction.moments.trace import ExportError as ExportError
