"""``format("claimcheck_local")``: topics of the embedded broker as a source and a sink."""
