"""The base of every error that Tierwall raises on purpose; it stands below all packages, so that CEL can share it."""

from __future__ import annotations


class TierwallError(Exception):
    """Something that Tierwall says rather than fails at; subclasses tell what."""
