"""The plan of a cutover, and its file."""
