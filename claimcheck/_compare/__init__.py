"""``claimcheck compare``: chunking, an external store and the broker's own means, measured with the same payloads."""
