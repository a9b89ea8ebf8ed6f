"""Checkpoints of a run: folded blocks, kept beside its journal."""
