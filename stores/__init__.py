"""The built-in stores, imported as ``claimcheck.stores.*``. Each imports its driver at first use."""
