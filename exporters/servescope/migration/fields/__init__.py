"""The fields of configurations: what they may be, what they mean, and which are secret."""
