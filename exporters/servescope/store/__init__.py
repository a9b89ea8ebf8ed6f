"""The past: an embedded store, or a Prometheus."""
