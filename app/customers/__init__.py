"""What the page of customers shows: who is configured, and what was delivered."""
