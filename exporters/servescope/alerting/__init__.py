"""What is alerted on, how it is evaluated, and what a notification and a runbook say."""
