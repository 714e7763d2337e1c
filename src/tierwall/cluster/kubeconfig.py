"""kubeconfig files, merged as kubectl merges them (docs/clusters.md#kubeconfig).

`KUBECONFIG` may name several files: the first entry of each name counts whole, and the first `current-context` that is
not empty. Missing files are skipped; a broken file fails everything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from tierwall.cluster.kubeconfig_entries import ClusterEntry, ContextEntry, KubeconfigDocument, UserEntry
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.source import format_path
from tierwall.resources.document import Document
from tierwall.resources.read import Limits, read_text

Entry = TypeVar("Entry")

_MAX_BYTES = 64 << 20
_CONVERT_PROBLEM = re.compile(r"Expected `([^`]*)`, got `([^`]*)`(?: - at `\$([^`]*)`)?")


class PlacedEntry(NamedTuple, Generic[Entry]):
    """An entry, and the file in which it stands."""

    value: Entry
    file: Path


class Kubeconfig:
    """Merged kubeconfig files."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        """Read the files; InputError with everything that is wrong with them."""
        self.files = files
        self.clusters: dict[str, PlacedEntry[ClusterEntry]] = {}
        self.users: dict[str, PlacedEntry[UserEntry]] = {}
        self.contexts: dict[str, PlacedEntry[ContextEntry]] = {}
        self.current_context = ""
        problems: list[Diagnostic] = []
        for file in files:
            document = _read(file, problems)
            if document is None:
                continue
            self.current_context = self.current_context or document.current_context
            _add(self.clusters, ((item.name, item.cluster) for item in document.clusters), "cluster", file, problems)
            _add(self.users, ((item.name, item.user) for item in document.users), "user", file, problems)
            _add(self.contexts, ((item.name, item.context) for item in document.contexts), "context", file, problems)
        if problems:
            raise InputError(problems)

    @classmethod
    def find(cls, named: str | None, environment: Mapping[str, str]) -> Kubeconfig:
        """Read the file that `--kubeconfig` names, else those of `KUBECONFIG`, else `~/.kube/config`."""
        return cls(kubeconfig_files(named, environment))


def kubeconfig_files(named: str | None, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files to merge. One that is named must exist; others are skipped if they do not."""
    if named is not None:
        return (Path(named),)
    listed = environment.get("KUBECONFIG", "")
    if listed:
        files = [Path(name) for name in dict.fromkeys(listed.split(os.pathsep)) if name]
    else:
        files = [Path(environment.get("HOME") or "~").expanduser() / ".kube" / "config"]
    return tuple(file for file in files if file.exists())


def kubeconfig_error(message: str, hint: str = "") -> InputError:
    """Return the error of a kubeconfig that cannot be used."""
    return InputError([Diagnostic("TW040", message, hint=hint)])


def _read(file: Path, problems: list[Diagnostic]) -> KubeconfigDocument | None:
    """Read one file; what is wrong with it joins the problems."""
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        problems.append(Diagnostic("TW040", f"kubeconfig `{file}` cannot be read: {error.strerror}"))
        return None
    if len(data) > _MAX_BYTES:
        problems.append(Diagnostic("TW040", f"kubeconfig `{file}` is larger than {_MAX_BYTES >> 20} MiB"))
        return None
    read = read_text(data, str(file), Limits(depth=64))
    if read.diagnostics:
        problems.extend(read.diagnostics)
        return None
    if not read.documents:
        return KubeconfigDocument()
    document = read.documents[0]
    try:
        return msgspec.convert(_without_nulls(document.value), KubeconfigDocument)
    except msgspec.ValidationError as error:
        problems.append(_malformed(document, str(error)))
        return None


def _add(
    entries: dict[str, PlacedEntry[Entry]],
    named: Iterable[tuple[str, Entry]],
    kind: str,
    file: Path,
    problems: list[Diagnostic],
) -> None:
    """Add entries of one file. An earlier file's entry of the same name counts; a name twice in a file is an error."""
    here: set[str] = set()
    for name, value in named:
        if name in here:
            problems.append(Diagnostic("TW040", f"kubeconfig `{file}` has the {kind} `{name}` twice"))
        here.add(name)
        entries.setdefault(name, PlacedEntry(value, file))


def _without_nulls(value: Any) -> Any:
    """Leave out nulls: Go's decoder reads them as absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


_NAMES: dict[str, str] = {
    "str": "a string",
    "int": "a number",
    "float": "a number",
    "bool": "a boolean",
    "object": "a map",
    "array": "a list",
    "null": "null",
}


def _malformed(document: Document, problem: str) -> Diagnostic:
    """Say in our own words what the decoder does not like, with its position."""
    match = _CONVERT_PROBLEM.fullmatch(problem)
    if match is None:
        return Diagnostic("TW040", f"kubeconfig: {problem}", document.position())
    expected, actual = (_NAMES.get(word.split(" | ")[0], word) for word in match.groups()[:2])
    parts = re.findall(r"\.([^.\[]+)|\[(\d+)\]", match[3] or "")
    path = tuple(int(index) if index else name for name, index in parts)
    hint = "put it in quotes" if expected == "a string" and actual in ("a number", "a boolean") else ""
    message = f"kubeconfig: expected {expected} as `{format_path(path)}`, found {actual}"
    return Diagnostic("TW040", message, document.position(path), hint=hint)
