"""Writes: one function is one use case, one transaction and one audit row."""
