"""Ours beside its peers, as ratios from one run: `python -m benchmarks [NAME ...]`."""
