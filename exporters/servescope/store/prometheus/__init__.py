"""A Prometheus that holds the past: its HTTP API, the targets and scrapes in it, and the figures over them."""
