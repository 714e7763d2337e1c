"""Meanings of a text in the ask field, plane by plane (docs/explorer.md#ask)."""
