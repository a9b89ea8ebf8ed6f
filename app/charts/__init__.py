"""Charts and tables of figures."""
