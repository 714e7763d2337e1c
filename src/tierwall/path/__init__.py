"""Paths through the planes: from a pod through a Gateway to a backend (docs/path.md)."""
