"""Mathematics that knows nothing about networks: pure functions of tensors and numbers."""
