"""Lanes: what was delivered to each destination, and what is next."""
