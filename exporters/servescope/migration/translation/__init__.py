"""Translations between stacks: what happens to each field, and what to watch after the move."""
