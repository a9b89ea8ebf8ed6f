"""What an alert is, what may be chosen about it, how it is evaluated, and how it is written as PromQL."""
