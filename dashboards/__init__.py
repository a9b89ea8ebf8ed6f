"""Grafana dashboards compiled from the catalog: one module per dashboard, written by `python -m dashboards`."""
