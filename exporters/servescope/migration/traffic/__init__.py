"""The traffic that a deployment served, and the token target that follows from it."""
