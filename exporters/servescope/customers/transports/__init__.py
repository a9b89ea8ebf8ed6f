"""How points leave: OTLP, remote write, and pages that are scraped."""
