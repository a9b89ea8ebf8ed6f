"""Source maps of no engine, for tests of how maps are read."""

from __future__ import annotations

from typing import Final

MINIMAL: Final = """
title = "X"
covers = "X 1"
evidence = "run"
layer = "engine"
[identify]
all = ["x"]
[default.engine]
status = "impossible"
reason = "no"
[default.router]
status = "elsewhere"
reason = "there"
[default.autoscaler]
status = "elsewhere"
reason = "there"
[default.process]
status = "impossible"
reason = "no"
"""
"""The map of an engine that supplies nothing."""
