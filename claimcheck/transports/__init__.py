"""Adapters of brokers; each broker's library is imported only in its own module."""
