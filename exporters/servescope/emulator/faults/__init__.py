"""Faults: what each does, and what it makes true."""
