"""From a payload to messages, and what became of them."""
