"""Variational families, one per file; `kasuri.posteriors.base` says how to add one."""

from kasuri.posteriors.base import Elementwise as Elementwise
