"""The alerts by topic, how their conditions are evaluated, and the dashboard links of their notifications."""
