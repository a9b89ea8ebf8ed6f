"""One target at a time, translated on request for a scraper that exists: `servescope translate`."""
