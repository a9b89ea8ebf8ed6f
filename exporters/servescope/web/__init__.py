"""The HTTP door that programs share: listening, the gate, TLS, tokens, and connections to others."""
