"""Reads lists of vulnerabilities in the Open Source Vulnerability format, and says whether a version is affected.

The format and the rule of evaluation: https://ossf.github.io/osv-schema/. A list is a file with a record, several
records or an answer of the OSV service, a folder of such files, or the zip archive that OSV exports for an ecosystem.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from packaging.utils import canonicalize_name

from supply.versions import VersionError, is_same_version, parse_version

MAX_RECORD = 64 * 1024 * 1024
# Events at the same version: a fix comes before a new introduction, so that what is in doubt counts as affected.
_ORDER = {"fixed": 0, "introduced": 1, "last_affected": 2}


class ListError(Exception):
    """A list of vulnerabilities cannot be read."""


class Package(msgspec.Struct):
    """The package that a record is about."""

    ecosystem: str
    name: str


class Range(msgspec.Struct):
    """Versions between events: introduced, fixed, last_affected, limit."""

    type: str
    events: list[dict[str, Any]]
    repo: str | None = None
    database_specific: dict[str, Any] | None = None


class Affected(msgspec.Struct):
    """A package with its affected versions: those listed, and those in a range."""

    package: Package | None = None
    ranges: list[Range] | None = None
    versions: list[str] | None = None


class Record(msgspec.Struct):
    """A vulnerability."""

    id: str
    modified: str
    withdrawn: str | None = None
    aliases: list[str] | None = None
    summary: str | None = None
    affected: list[Affected] | None = None


class Effect(msgspec.Struct, frozen=True):
    """A version is affected; `doubt` says why that is only assumed."""

    fixed_in: str = ""
    doubt: str = ""


def read_records(paths: Iterable[Path]) -> dict[str, Record]:
    """Return the records of these files, folders and archives by id; of two with one id the later counts."""
    records: dict[str, Record] = {}
    for path in paths:
        for record in _records(path):
            known = records.get(record.id)
            if known is None or known.modified <= record.modified:
                records[record.id] = record
    if not records:
        raise ListError("expected at least one record, found none")
    return records


def _records(path: Path) -> Iterator[Record]:
    try:
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                if file.suffix in (".json", ".zip") and file.is_file():
                    yield from _records(file)
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist():
                    if entry.filename.endswith(".json"):
                        if entry.file_size > MAX_RECORD:
                            raise ListError(f"{path}({entry.filename}): expected at most 64 MiB, found more")
                        yield from _decode(archive.read(entry), f"{path}({entry.filename})")
        else:
            yield from _decode(path.read_bytes(), str(path))
    except (OSError, zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError) as error:
        raise ListError(f"{path}: {error}") from error


def _decode(text: bytes, place: str) -> list[Record]:
    try:
        value = msgspec.json.decode(text)
        if isinstance(value, dict) and "vulns" in value and "id" not in value:
            value = value["vulns"]
        return msgspec.convert(value if isinstance(value, list) else [value], list[Record])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ListError(f"{place}: expected records in the OSV format, found another text: {error}") from error


def effect(record: Record, ecosystem: str, name: str, version: str) -> Effect | None:
    """Return how a record affects a version of a package; None if it does not, or is withdrawn."""
    if record.withdrawn:
        return None
    entries = [entry for entry in record.affected or () if _is_about(entry, ecosystem, name)]
    return _first(_entry_effect(entry, ecosystem, version) for entry in entries)


def repository_effect(record: Record, repository: str, version: str) -> Effect | None:
    """Return how a record that names commits of a repository affects a released version."""
    if record.withdrawn:
        return None
    return _first(
        _repository_effect(entry, git, version)
        for entry in record.affected or ()
        for git in entry.ranges or ()
        if git.type == "GIT" and _location(git.repo or "") == repository
    )


def _first(effects: Iterable[Effect | None]) -> Effect | None:
    """Return the first effect, and one without doubt before others."""
    return min((effect for effect in effects if effect), key=lambda effect: bool(effect.doubt), default=None)


def _is_about(entry: Affected, ecosystem: str, name: str) -> bool:
    if entry.package is None or entry.package.ecosystem.partition(":")[0] != ecosystem:
        return False
    return normal_name(ecosystem, entry.package.name) == normal_name(ecosystem, name)


def normal_name(ecosystem: str, name: str) -> str:
    """Return a name as its ecosystem compares names."""
    if ecosystem != "PyPI":
        return name
    return canonicalize_name(name)


def _location(url: str) -> str:
    return url.lower().removesuffix("/").removesuffix(".git").partition("://")[2]


def _entry_effect(entry: Affected, ecosystem: str, version: str) -> Effect | None:
    ordered = [span for span in entry.ranges or () if span.type in ("ECOSYSTEM", "SEMVER")]
    try:
        for span in ordered:
            if within := _range_effect(span.events, ecosystem, version):
                return within
    except VersionError as error:
        return Effect(doubt=str(error))
    if any(is_same_version(ecosystem, listed, version) for listed in entry.versions or ()):
        return Effect(_next_fix(ordered, ecosystem, version))
    if not ordered and not entry.versions:
        return Effect(doubt="the record does not say which versions")
    return None


def _repository_effect(entry: Affected, git: Range, version: str) -> Effect | None:
    """Return the effect by listed tags, or by the versions that converters of CVE records add to a range."""
    if any(is_same_version("GIT", listed, version) for listed in entry.versions or ()):
        return Effect()
    events = (git.database_specific or {}).get("versions")
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        return None if entry.versions else Effect(doubt="the record names commits only")
    try:
        return _range_effect(events, "GIT", version)
    except VersionError as error:
        return Effect(doubt=str(error))


def _range_effect(events: list[dict[str, Any]], ecosystem: str, version: str) -> Effect | None:
    """Return the effect of a range, by the algorithm of the OSV schema."""
    given = parse_version(ecosystem, version)
    limits = [str(event["limit"]) for event in events if "limit" in event]
    if limits and "*" not in limits and all(parse_version(ecosystem, limit) <= given for limit in limits):
        return None
    is_affected = False
    fixed_in = ""
    for kind, text in _sorted(events, ecosystem):
        at = None if text == "0" and kind == "introduced" else parse_version(ecosystem, text)
        if kind == "introduced" and (at is None or at <= given):
            is_affected = True
        elif kind == "fixed" and at is not None:
            if at <= given:
                is_affected = False
            elif not fixed_in:
                fixed_in = text
        elif kind == "last_affected" and at is not None and at < given:
            is_affected = False
    return Effect(fixed_in) if is_affected else None


def _sorted(events: list[dict[str, Any]], ecosystem: str) -> list[tuple[str, str]]:
    start = [(kind, "0") for event in events for kind, at in event.items() if kind == "introduced" and str(at) == "0"]
    later = [
        (kind, str(at))
        for event in events
        for kind, at in event.items()
        if kind in _ORDER and not (kind == "introduced" and str(at) == "0")
    ]
    return start + sorted(later, key=lambda event: (parse_version(ecosystem, event[1]), _ORDER[event[0]]))


def _next_fix(ranges: list[Range], ecosystem: str, version: str) -> str:
    given = parse_version(ecosystem, version)
    fixes = [str(event["fixed"]) for span in ranges for event in span.events if "fixed" in event]
    later = [fix for fix in fixes if parse_version(ecosystem, fix) > given]
    return min(later, key=lambda fix: parse_version(ecosystem, fix), default="")
