"""Findings about policies as a whole: checks, differences, proofs."""
