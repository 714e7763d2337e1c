"""The first document of a snapshot file, `kind: Snapshot` (docs/clusters.md#snapshots).

It says what the objects after it do not: the namespace of the context, which kinds could not be read, and which objects
come from files. With it, `-f prod.yaml` stands for `--context prod`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.words import join_names
from tierwall.resources.document import Document, SourceText
from tierwall.resources.resource import Identity
from tierwall.resources.unlisted import UnlistedKind

CODE = "TW045"
API_VERSION, KIND = "tierwall.io/v1alpha1", "Snapshot"
_REWRITE = "write the snapshot again; if it was changed by hand, remove `objects` from its first document"
# A text that ends in the middle of an object may still be YAML. This line says that nothing is missing.
END = "...\n"


class ReadKind(msgspec.Struct, frozen=True, rename="camel", order=True):
    """A kind that was read, in the version in which the cluster serves it."""

    api_version: str
    kind: str


class FileObject(msgspec.Struct, frozen=True, omit_defaults=True, order=True):
    """An object that comes from a file."""

    kind: str
    name: str
    group: str = ""
    namespace: str = ""


class SnapshotDocument(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The first document of a snapshot file."""

    namespace: str = ""
    server_version: str = ""
    cluster: bool = True
    kinds: tuple[ReadKind, ...] = ()
    not_considered: tuple[UnlistedKind, ...] = ()
    from_files: tuple[FileObject, ...] = ()
    objects: int | None = None

    @property
    def given_objects(self) -> frozenset[Identity]:
        """The objects that come from files."""
        return frozenset((entry.group, entry.kind, entry.namespace, entry.name) for entry in self.from_files)

    @property
    def value(self) -> dict[str, Any]:
        """The document as a plain value."""
        fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))  # with lists in place of tuples
        return {"apiVersion": API_VERSION, "kind": KIND, **fields}


def is_snapshot_document(value: Any) -> bool:
    """Whether a document is the first one of a snapshot, in whatever version, even if its kind is cut off."""
    if not isinstance(value, dict):
        return False
    kind, api_version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str) or not kind or not KIND.startswith(kind):
        return False
    return isinstance(api_version, str) and api_version.partition("/")[0] == API_VERSION.partition("/")[0]


def read_snapshot_document(document: Document) -> SnapshotDocument | Diagnostic:
    """Read the first document of a snapshot, or say what is wrong with it."""
    from tierwall.resources.admission import admit  # few files are snapshots

    value = document.value
    if (value["apiVersion"], value["kind"]) != (API_VERSION, KIND):
        message = f"expected `{API_VERSION} {KIND}`, found `{value['apiVersion']} {value['kind']}`"
        return _problem(document, f"the snapshot cannot be read: {message}")
    refusals = [problem for problem in admit(value) if problem.refuses]
    if refusals:
        first = refusals[0]
        return _problem(document, f"the snapshot cannot be read: {first.message}", first.path, first.hint)
    try:
        return msgspec.convert({key: value[key] for key in value if value[key] is not None}, SnapshotDocument)
    except msgspec.ValidationError as error:
        return _problem(document, f"the snapshot cannot be read: {error}")


def misplaced(document: Document) -> Diagnostic:
    """Say that a document that begins a snapshot is not the first of its file."""
    return _problem(document, "a Snapshot must be the first document of its file", hint="keep snapshots in files")


def too_many(documents: Iterable[Document]) -> Diagnostic:
    """Say that there are several snapshots, each of a whole cluster."""
    listed = list(documents)
    names = join_names([f"`{document.source.name}`" for document in listed])
    message = f"{names} are snapshots, each of a whole cluster; only one can be read at a time"
    return _problem(listed[1], message, hint="`tierwall diff OLD NEW` compares two")


def over_cluster() -> Diagnostic:
    """Say that a snapshot and a cluster are to be read at once."""
    message = "a snapshot stands for a whole cluster, so it cannot lie over another one"
    return Diagnostic(CODE, message, hint="leave out --cluster and --context, or the snapshot")


def incomplete(head: SnapshotDocument, document: Document, count: int) -> Diagnostic | None:
    """Say that the file is not complete, if it is not: `count` objects follow its first document."""
    if head.objects is None:
        missing = "the snapshot is not complete: no object follows its first document"
        return _problem(document, missing, (), _REWRITE) if not count else None
    if count != head.objects:
        message = f"the snapshot is not complete: it should have {head.objects:,} objects, and has {count:,}"
        return _problem(document, message, ("objects",), _REWRITE)
    if not document.is_json and not _ends(document.source):
        return _problem(document, "the snapshot is not complete: its end is missing", ("objects",), _REWRITE)
    return None


def _ends(source: SourceText) -> bool:
    lines = source.data[-4096:].replace(b"\r", b"").rstrip()
    return lines.endswith(b"\n...") or lines == b"..."


def _problem(document: Document, message: str, path: tuple[str | int, ...] = (), hint: str = "") -> Diagnostic:
    return Diagnostic(CODE, message, document.position(path), hint=hint)
