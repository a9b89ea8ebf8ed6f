"""What generates the reference pages of the documentation."""
