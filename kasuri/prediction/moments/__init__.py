"""Predictions without drawing weights: means and variances carried through a network's graph."""
