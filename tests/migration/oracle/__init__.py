"""The vendor's published tool beside our validation, on the same configurations."""
