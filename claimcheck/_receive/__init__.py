"""From messages to payloads."""
