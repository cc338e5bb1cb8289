"""What bytes mean: envelopes, pointers, headers, sizes, checksums and signatures. No I/O."""
