"""Proofs about the network plane: exact and complete, one circuit over two ends and one connection."""
