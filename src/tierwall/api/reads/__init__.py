"""Conditional reads: lists and watches whose selectors imply the conditions (docs/semantics.md#conditional-reads)."""
