"""The stores that come with claimcheck, imported as ``claimcheck.stores.*``; each vendor is loaded at first use."""
