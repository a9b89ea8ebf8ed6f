"""The journal of cutovers, and the runs in it."""
