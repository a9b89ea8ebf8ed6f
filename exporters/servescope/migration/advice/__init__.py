"""Advice on what v2 adds, from the traffic at hand."""
