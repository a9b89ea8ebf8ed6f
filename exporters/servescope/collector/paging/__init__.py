"""The collector's own alerting: rules over its figures, what becomes of alerts, and telling those who are to know."""
