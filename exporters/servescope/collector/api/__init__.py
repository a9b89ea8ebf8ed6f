"""The HTTP API of the collector: its answers, parameters, and their description."""
