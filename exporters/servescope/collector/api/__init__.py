"""What stands between the collector's pages and whoever asks: connections, TLS, tokens, and bounds on all of it."""
