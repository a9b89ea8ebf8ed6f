"""The verdict: of each metric, of a stage, and what is said with it."""
