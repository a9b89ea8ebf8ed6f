"""What a plan can prove, and how far the judge can be trusted, before a cutover starts."""
