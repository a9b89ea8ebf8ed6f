"""Generates rules, runbooks and Alertmanager's configuration from the catalog: `python -m alerts`."""
