"""How the emulated processes look to a scraper: in servescope's own names, or in those of other programs."""
