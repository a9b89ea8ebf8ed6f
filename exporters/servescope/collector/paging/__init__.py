"""The collector's own alerting: evaluates alert rules on its figures, keeps their state, notifies receivers."""
