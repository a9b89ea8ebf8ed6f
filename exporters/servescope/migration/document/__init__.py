"""Documents: read with the place of every node, and edited in place."""
