"""CEL for proofs: an expression as a circuit, over values that are not known."""
