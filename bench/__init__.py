"""Benchmarks: one module each, run as `python -m bench.NAME`; a JSON line per figure."""
