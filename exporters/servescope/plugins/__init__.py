"""Entry points into engines: what an engine finds by name and loads into its own process."""
