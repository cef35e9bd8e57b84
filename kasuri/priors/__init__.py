"""Priors p(W): what the objective believes about weights before it sees data."""
