"""Expressions of CEL as circuits, over values that are not known."""
