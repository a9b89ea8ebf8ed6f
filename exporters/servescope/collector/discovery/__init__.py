"""Discovery: the targets that files and servers list now."""
