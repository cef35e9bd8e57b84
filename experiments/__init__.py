"""Experiments: complete descriptions of runs, one file per paper or question."""
