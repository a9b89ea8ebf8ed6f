"""Small `/metrics` pages of engines: captured from running ones, or written from their source maps and marked so."""

from __future__ import annotations
