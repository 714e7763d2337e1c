"""Proofs about the api plane."""
