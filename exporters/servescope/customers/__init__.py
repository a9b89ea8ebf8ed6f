"""What customers receive of their deployments: which series, as which points, by push and by pull."""
