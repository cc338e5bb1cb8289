"""``format("claimcheck_pulsar")``: Pulsar topics as a source and a sink."""
