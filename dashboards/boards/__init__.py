"""One module per dashboard."""
