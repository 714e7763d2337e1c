"""Proofs about every pod, caller, user and object that may ever come (docs/prove.md)."""
