"""One script per page; each composes queries, charts and tables."""
