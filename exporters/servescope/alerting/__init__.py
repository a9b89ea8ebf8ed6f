"""What is alerted on, how it is evaluated, and where its links lead."""
