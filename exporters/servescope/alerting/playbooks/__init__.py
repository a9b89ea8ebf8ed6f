"""What each engine family logs, exposes and can be set to, by topic, for every runbook that needs it."""
