"""Scenarios: what is emulated, from a file, a rehearsal or a recording."""
