"""Predictions with uncertainty, and what they are worth."""
