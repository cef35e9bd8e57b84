"""Variational families, one per file; `weft.posteriors.base` says how to add one."""
