"""`claimcheck doctor`: looks at a configuration, its stores and its topics, and reports what will go wrong."""
