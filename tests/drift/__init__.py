"""The catalog rebuilt from the files that were generated from it, so that neither can say what the other does not."""
