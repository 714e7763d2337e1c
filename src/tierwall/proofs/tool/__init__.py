"""Proofs about the tool plane."""
