"""The base of every error that Tierwall raises on purpose. It lies below all packages, so that CEL can share it."""

from __future__ import annotations


class TierwallError(Exception):
    """An error that Tierwall reports to its caller; its subclasses say what is wrong."""
