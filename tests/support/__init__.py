"""What tests of several subjects share: the machine's slowness, and waiting for a condition."""
