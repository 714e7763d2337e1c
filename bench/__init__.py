"""Measurements: ratios against a peer or a baseline in one run; results belong in docs/performance.md."""
