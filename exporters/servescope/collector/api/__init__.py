"""The HTTP side of the API: connections, TLS, tokens, limits, parameters and answers."""
