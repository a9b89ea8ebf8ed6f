"""One emulated engine: its scheduler, cache, costs and speculation."""
