"""kubeconfig files, merged as kubectl merges them (docs/clusters.md#kubeconfig).

`KUBECONFIG` may name several files: the first entry of each name counts whole, and the first `current-context` that is
not empty. Missing files are skipped; a broken file fails everything.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from tierwall.cluster.kubeconfig_entries import ClusterEntry, ContextEntry, KubeconfigDocument, UserEntry
from tierwall.core.catalogue import Severity
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.source import Position, format_path
from tierwall.resources.document import Document
from tierwall.resources.read import Limits, read_text

Entry = TypeVar("Entry")

_MAX_BYTES = 16 << 20
_MAX_DEPTH = 64
_CLUSTER_DATA = ("certificate-authority-data",)
_USER_DATA = ("client-certificate-data", "client-key-data")
_CONVERT_PROBLEM = re.compile(r"Expected `([^`]*)`, got `([^`]*)`(?: - at `\$([^`]*)`)?")


class PlacedEntry(NamedTuple, Generic[Entry]):
    """An entry, the folder at which its relative paths start, and where it stands."""

    value: Entry
    folder: Path = Path()
    text: Document | None = None
    path: tuple[str | int, ...] = ()

    @property
    def at(self) -> Position | None:
        """The position of the entry."""
        return self.text.position(self.path) if self.text is not None else None


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
            read = _FileReader(file, problems)
            document = read.document
            self.current_context = self.current_context or document.current_context
            read.add(self.clusters, "cluster", ((item.name, item.cluster) for item in document.clusters))
            read.add(self.users, "user", ((item.name, item.user) for item in document.users))
            read.add(self.contexts, "context", ((item.name, item.context) for item in document.contexts))
        if problems:
            raise InputError(problems)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in any of the files."""
        return not (self.current_context or self.clusters or self.users or self.contexts)

    @classmethod
    def find(cls, named: str | None, environment: Mapping[str, str]) -> Kubeconfig:
        """Read the file that `--kubeconfig` names, else those of `KUBECONFIG`, else `~/.kube/config`."""
        return cls(kubeconfig_files(named, environment))


def kubeconfig_files(named: str | None, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files to merge. One that is named must exist; others are skipped if they do not."""
    if named:
        return (Path(named),)
    listed = environment.get("KUBECONFIG", "")
    if listed:
        files = [Path(name) for name in dict.fromkeys(listed.split(os.pathsep)) if name]
    else:
        files = [Path(environment.get("HOME") or "~").expanduser() / ".kube" / "config"]
    return tuple(file for file in files if not _is_missing(file))


def _is_missing(file: Path) -> bool:
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        # It is there; reading it says what is wrong.
        return False
    return False


def kubeconfig_error(message: str, hint: str = "") -> InputError:
    """Return the error of a kubeconfig that cannot be used."""
    return InputError([Diagnostic("TW040", message, hint=hint)])


class _FileReader:
    """Reads one file; what is wrong with it joins the problems."""

    def __init__(self, file: Path, problems: list[Diagnostic]) -> None:
        self.document = KubeconfigDocument()
        self._file, self._problems = file, problems
        self._text: Document | None = None
        try:
            with file.open("rb") as opened:
                data = opened.read(_MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its name has a NUL in it"
            self._problem(f"`{file}` cannot be read: {reason}")
            return
        if len(data) > _MAX_BYTES:
            self._problem(f"`{file}` is larger than {_MAX_BYTES >> 20} MiB")
            return
        read = read_text(data, str(file), Limits(depth=_MAX_DEPTH))
        if read.diagnostics:
            problems.extend(
                replace(problem, code="TW040", message=f"kubeconfig: {problem.message}")
                for problem in read.diagnostics
                if problem.severity is Severity.ERROR
            )
        elif read.files[0].form:
            self._problem(f"expected a kubeconfig, found a {read.files[0].form}: `{file}`")
        elif read.documents:
            # kubectl reads the first document alone.
            self._text = read.documents[0]
            self._decode(self._text)

    def add(self, entries: dict[str, PlacedEntry[Entry]], kind: str, named: Iterable[tuple[str, Entry]]) -> None:
        """Add entries. An earlier file's entry of the same name counts; a name twice in a file is an error."""
        folder = Path(os.path.abspath(self._file.parent))
        here: set[str] = set()
        for index, (name, value) in enumerate(named):
            entry = PlacedEntry(value, folder, self._text, (f"{kind}s", index))
            if name in here:
                self._problem(f"the {kind} `{name}` is there twice", entry.at)
            here.add(name)
            entries.setdefault(name, entry)

    def _decode(self, text: Document) -> None:
        try:
            document = msgspec.convert(_without_nulls(text.value), KubeconfigDocument)
        except msgspec.ValidationError as error:
            self._problems.append(_malformed(text, str(error)))
            return
        except _NulError as error:
            self._problem(f"`{format_path(error.path)}` has a NUL in it", text.position(error.path))
            return
        if (document.kind or "Config") != "Config" or (document.api_version or "v1") != "v1":
            actual = f"{document.kind or 'Config'} of {document.api_version or 'v1'}"
            self._problem(f"expected Config of v1, found {actual}", text.position())
            return
        for path in _not_base64(document):
            self._problem(f"`{format_path(path)}` is not base64", text.position(path))
        self.document = document

    def _problem(self, message: str, at: Position | None = None) -> None:
        self._problems.append(Diagnostic("TW040", f"kubeconfig: {message}", at))


def from_base64(text: str) -> bytes | None:
    """Decode the data of a certificate or key; None if it is not base64. As in Go, line breaks are allowed."""
    try:
        return base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except ValueError:
        return None


def _not_base64(document: KubeconfigDocument) -> Iterator[tuple[str | int, ...]]:
    """Yield the places of data that is not base64: of any entry, whether or not it is used."""
    entries: list[tuple[tuple[str | int, ...], Any, tuple[str, ...]]] = [
        *(
            (("clusters", index, "cluster"), item.cluster, _CLUSTER_DATA)
            for index, item in enumerate(document.clusters)
        ),
        *((("users", index, "user"), item.user, _USER_DATA) for index, item in enumerate(document.users)),
    ]
    for path, entry, names in entries:
        for name in names:
            if from_base64(getattr(entry, name.replace("-", "_"))) is None:
                yield *path, name


def _without_nulls(value: Any, path: tuple[str | int, ...] = ()) -> Any:
    """Leave out nulls: Go's decoder reads them as absent. A NUL in a string is refused: no system takes it."""
    if isinstance(value, dict):
        return {key: _without_nulls(item, (*path, key)) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item, (*path, index)) for index, item in enumerate(value) if item is not None]
    if isinstance(value, str) and "\0" in value:
        raise _NulError(path)
    return value


class _NulError(Exception):
    def __init__(self, path: tuple[str | int, ...]) -> None:
        super().__init__()
        self.path = path


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
    # The decoder names no key of a free map; the place of the map will do.
    parts = re.findall(r"\.([^.\[]+)|\[(\d+)\]", (match[3] or "").partition("[...]")[0])
    path = tuple(int(index) if index else name for name, index in parts)
    hint = "put it in quotes" if expected == "a string" and actual in ("a number", "a boolean") else ""
    place = f" as `{format_path(path)}`" if path else ""
    message = f"kubeconfig: expected {expected}{place}, found {actual}"
    return Diagnostic("TW040", message, document.position(path), hint=hint)
