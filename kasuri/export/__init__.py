"""Networks out of the door: files that PyTorch alone, or onnxruntime alone, can run."""
