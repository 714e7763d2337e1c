"""Measurements: ratios against a peer or a baseline in one run; results belong in docs/performance.md."""

import os

# What benchmarks start must find its bytecode cached, as users have it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
