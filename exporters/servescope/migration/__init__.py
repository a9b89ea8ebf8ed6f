"""A configuration moved between inference stacks: read with positions, validated, translated, edited; pure."""
