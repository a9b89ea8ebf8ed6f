"""The tables of the embedded store, and the file that they are in."""
