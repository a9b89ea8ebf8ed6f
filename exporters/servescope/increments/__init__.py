"""What counters gained: over resets, windows and blocks of five minutes, in arrays."""
