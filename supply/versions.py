"""Compares versions as an ecosystem does: PEP 440 for PyPI, Semantic Versioning 2.0.0 for the others."""

from __future__ import annotations

import re
from functools import total_ordering
from typing import Any

from packaging.version import InvalidVersion, Version

_SEMANTIC = re.compile(
    r"^v?(?P<major>\d+)(?:\.(?P<minor>\d+))?(?:\.(?P<patch>\d+))?(?:-(?P<pre>[0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?$"
)


class VersionError(Exception):
    """A text is not a version of its ecosystem."""


@total_ordering
class SemanticVersion:
    """A version whose order Semantic Versioning gives; a leading `v`, and minor and patch left out, are understood."""

    def __init__(self, text: str) -> None:
        parts = _SEMANTIC.match(text)
        if parts is None:
            raise VersionError(f"expected a semantic version, found `{text}`")
        self._numbers = tuple(int(parts[name] or 0) for name in ("major", "minor", "patch"))
        # A version without a pre-release part comes after all that have one; numbers come before words.
        pre = parts["pre"]
        self._pre: tuple[tuple[int, int, str], ...] = tuple(
            (0, int(part), "") if part.isdigit() else (1, 0, part) for part in (pre.split(".") if pre else ())
        )

    def _key(self) -> tuple[tuple[int, ...], bool, tuple[tuple[int, int, str], ...]]:
        return self._numbers, not self._pre, self._pre

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SemanticVersion) and self._key() == other._key()

    def __lt__(self, other: SemanticVersion) -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())


def parse_version(ecosystem: str, text: str) -> Any:
    """Return a version that compares with others of the same ecosystem; VersionError if it cannot be read."""
    if ecosystem != "PyPI":
        return SemanticVersion(text)
    try:
        return Version(text)
    except InvalidVersion as error:
        raise VersionError(f"expected a version as in PEP 440, found `{text}`") from error


def is_same_version(ecosystem: str, text: str, other: str) -> bool:
    """Return whether two texts mean the same version; texts that cannot be read are compared as they are."""
    try:
        return bool(parse_version(ecosystem, text) == parse_version(ecosystem, other))
    except VersionError:
        return text == other
