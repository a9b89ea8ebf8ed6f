"""What a Prometheus beside servescope runs, compiled from the catalog by `python -m alerts`."""
