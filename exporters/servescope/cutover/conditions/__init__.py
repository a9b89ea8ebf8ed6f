"""Under which conditions arms can be compared: load, prompts, warmth, and what they explain."""
