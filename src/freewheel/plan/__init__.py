"""Which protocol suits this cluster? Measured briefly, then simulated."""
