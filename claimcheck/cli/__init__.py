"""The commands of ``claimcheck ...``; `claimcheck.__main__` runs them."""
