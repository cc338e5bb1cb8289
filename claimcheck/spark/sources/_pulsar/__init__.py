"""``format("claimcheck_pulsar")``: topics of Apache Pulsar as a source and a sink."""
