"""Panels: what they show, how they are queried, laid out, and written with grafanalib."""
