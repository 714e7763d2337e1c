"""Semantic versions (apiserver pkg/cel/library/semverlib.go; semver.org 2.0.0)."""

from __future__ import annotations

import re
from typing import ClassVar

import msgspec

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library import cost
from tierwall.cel.library.table import Overload, is_parsed_by, member_overloads
from tierwall.cel.types import BOOL, INT, STRING, Type
from tierwall.cel.values import UINT_MAX, OpaqueValue
from tierwall.values.pattern import pattern

_NUMBER = r"(0|[1-9][0-9]{0,19})"
_TEXT = pattern(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?", re.ASCII)
_PART = pattern(r"[0-9A-Za-z-]+", re.ASCII)
_MAX_LENGTH = 4096


class Semver(OpaqueValue, msgspec.Struct, frozen=True, gc=False):
    """A semantic version; build metadata does not affect order or equality."""

    cel_type: ClassVar[str] = "kubernetes.Semver"
    reader: ClassVar[str] = "semver"
    major: int
    minor: int
    patch: int
    prerelease: tuple[int | str, ...] = ()
    build: tuple[str, ...] = ()

    def same(self, other: Semver) -> bool:
        """Compare by precedence."""
        return compare(self, other) == 0

    def notation(self) -> str:
        """Return the version as semver.org writes it."""
        text = f"{self.major}.{self.minor}.{self.patch}"
        text += "-" + ".".join(map(str, self.prerelease)) if self.prerelease else ""
        return text + ("+" + ".".join(self.build) if self.build else "")


SEMVER = Type(Semver.cel_type)


def compare(left: Semver, right: Semver) -> int:
    """Compare by the precedence of semver.org, clause 11: -1, 0 or 1."""
    left_numbers = left.major, left.minor, left.patch
    right_numbers = right.major, right.minor, right.patch
    if left_numbers != right_numbers:
        return 1 if left_numbers > right_numbers else -1
    if not left.prerelease or not right.prerelease:
        return bool(right.prerelease) - bool(left.prerelease)
    for left_part, right_part in zip(left.prerelease, right.prerelease, strict=False):
        if left_part == right_part:
            continue
        if isinstance(left_part, int) != isinstance(right_part, int):
            return -1 if isinstance(left_part, int) else 1
        return 1 if left_part > right_part else -1  # type: ignore[operator]
    return (len(left.prerelease) > len(right.prerelease)) - (len(left.prerelease) < len(right.prerelease))


def _invalid(text: str) -> EvaluationError:
    return EvaluationError(f"`{text[:80]}` is not a semantic version")


def parse(text: str, normalize: bool = False) -> Semver:
    """`semver(text)`; normalizing accepts a leading `v`, short versions and leading zeros."""
    given = text
    if normalize:
        text = _normalized(text)
    match = _TEXT.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise _invalid(given)
    major, minor, patch = int(match[1]), int(match[2]), int(match[3])
    prerelease: list[int | str] = []
    for part in match[4].split(".") if match[4] is not None else ():
        if not _PART.fullmatch(part) or (part.isdigit() and len(part) > 1 and part[0] == "0"):
            raise _invalid(given)
        prerelease.append(int(part) if part.isdigit() else part)
    build = tuple(match[5].split(".")) if match[5] is not None else ()
    if "" in build or any(
        isinstance(number, int) and number > UINT_MAX for number in (major, minor, patch, *prerelease)
    ):
        raise _invalid(given)
    return Semver(major, minor, patch, tuple(prerelease), build)


def _normalized(text: str) -> str:
    parts = text.removeprefix("v").split(".", 2)
    for place, part in enumerate(parts):
        if len(part) > 1:
            part = part.lstrip("0")
            parts[place] = part if part[:1] in tuple("0123456789") else "0" + part
    if len(parts) < 3 and any(mark in parts[-1] for mark in "+-"):
        raise EvaluationError("short version cannot contain PreRelease/Build meta data")
    return ".".join(parts + ["0"] * (3 - len(parts)))


_member = member_overloads(SEMVER, since=33)
_FLAGGED = (STRING, BOOL)
_is_semver = is_parsed_by(parse)

OVERLOADS: tuple[Overload, ...] = (
    Overload("semver", (STRING,), SEMVER, parse, cost=cost.scan, since=33),
    Overload("semver", _FLAGGED, SEMVER, parse, cost=cost.scan, since=33),
    Overload("isSemver", (STRING,), BOOL, _is_semver, cost=cost.scan, since=33),
    Overload("isSemver", _FLAGGED, BOOL, _is_semver, cost=cost.scan, since=33),
    _member("isGreaterThan", (SEMVER,), BOOL, lambda a, b: compare(a, b) > 0),
    _member("isLessThan", (SEMVER,), BOOL, lambda a, b: compare(a, b) < 0),
    _member("compareTo", (SEMVER,), INT, compare),
    _member("major", (), INT, lambda version: version.major),
    _member("minor", (), INT, lambda version: version.minor),
    _member("patch", (), INT, lambda version: version.patch),
)
