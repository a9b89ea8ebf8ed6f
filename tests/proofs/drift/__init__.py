"""The catalog rebuilt from the files that were generated from it, so that neither has what the other has not."""
