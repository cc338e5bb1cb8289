"""Code shared by the transports."""
