"""How rows are packed, and how series are read from packs and recent rows."""
