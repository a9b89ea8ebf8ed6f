"""Derived figures: rates of series, grouped and computed for all deployments at once."""
