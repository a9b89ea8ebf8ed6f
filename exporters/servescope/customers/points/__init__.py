"""The points of a customer's streams: read from the past, under its names, after its policy."""
