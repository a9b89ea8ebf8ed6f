"""What a customer may receive, and where it is sent."""
