"""What is scraped: targets, their deployments, and who may claim them."""
