"""The embedded store, in one SQLite file: written by one collector, read by any number of processes meanwhile."""
