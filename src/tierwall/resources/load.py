"""Load files into a snapshot: documents become objects, and lists become their items.

An object of a namespaced kind without a namespace gets the caller's namespace, which is `default` as for kubectl. If an
object is defined twice, the later definition counts, with a warning. A document that is not an object is counted
(`resources.unread`), or is an error in a file that the user named. Admission does not happen here.

If one of the files is a snapshot of a cluster, the others lie over it (docs/clusters.md#snapshots).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from tierwall.core.answer import Omission
from tierwall.core.diagnostics import MAX_OF_FILE, Diagnostic, Diagnostics, InputError, sorted_diagnostics
from tierwall.core.source import Origin, Position
from tierwall.resources.document import Document, SourceText
from tierwall.resources.file_cache import CachedFile, FileCache
from tierwall.resources.object_reader import ObjectFailure, objects_in
from tierwall.resources.overlay import overlay
from tierwall.resources.read import ReadResult, ReadSettings, read_paths, read_text
from tierwall.resources.repeated import RepeatedObjects
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import BackendRefGrants, Snapshot
from tierwall.resources.snapshot_document import SnapshotDocument, is_snapshot_document
from tierwall.resources.snapshot_files import SnapshotFiles
from tierwall.resources.unread import UnreadSet, document_form


class LoadResult(Struct, frozen=True):
    """The result of a load: all objects in order, their snapshot, the diagnostics, and the source texts.

    `lost` has those of the diagnostics that say which folder can no longer be read as a whole.
    """

    resources: tuple[Resource, ...]
    snapshot: Snapshot
    diagnostics: Diagnostics
    read: ReadResult
    lost: tuple[Diagnostic, ...] = ()
    # Files and documents that are not objects, by form.
    unread: tuple[Omission, ...] = ()
    # The namespace of names that have none, and of objects that had none.
    namespace: str = "default"
    # If one of the files is a snapshot: its first document, and the objects of its cluster alone.
    head: SnapshotDocument | None = None
    cluster_snapshot: Snapshot | None = None

    @property
    def errors(self) -> Diagnostics:
        """The diagnostics that are errors: files that cannot be read, and documents that are not objects."""
        return self.diagnostics.errors

    @property
    def cluster(self) -> str:
        """The name of the cluster that was read, or an empty string. Its objects come first."""
        at = self.resources[0].position() if self.resources and self.resources[0].is_live else None
        return at.file if at is not None and at.is_in_cluster else ""

    def line(self, file: str, number: int) -> str | None:
        """Return a line of a file as it was read, to show it with a diagnostic."""
        return self.read.line(file, number)


class LoadSettings(Struct, frozen=True):
    """How to load: the namespace of objects that have none, and what to leave out of folders and of the objects.

    Without a namespace it is that of a snapshot among the files, else `default`.
    """

    namespace: str = ""
    exclude: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    skip_non_manifests: bool = False
    backend_ref_grants: BackendRefGrants = "route"

    @property
    def reading(self) -> ReadSettings:
        """How to read the files."""
        return ReadSettings(self.exclude, self.skip_non_manifests)


DEFAULT_SETTINGS = LoadSettings()


def load(paths: Iterable[str], settings: LoadSettings = DEFAULT_SETTINGS) -> LoadResult:
    """Load files and folders. Problems become diagnostics and are never raised."""
    return Loader(paths, settings).load()


def load_text(text: str | bytes, name: str, namespace: str = "") -> LoadResult:
    """Load a text that is already in memory. Problems become diagnostics and are never raised."""
    return Loader((), LoadSettings(namespace)).load_documents(read_text(text, name))


def read_document(path: str) -> Any:
    """Return the only document of a file (`-`: standard input); raise InputError if there is not exactly one."""
    read = read_paths([path])
    errors = Diagnostics(read.diagnostics).errors
    if not errors and len(read.documents) != 1:
        errors = Diagnostics([Diagnostic("TW703", f"expected one document in `{path}`, found {len(read.documents)}")])
    if errors:
        raise InputError(errors)
    return read.documents[0].value


class DocumentResult(Struct, frozen=True):
    """The objects of a document, and what in it is not an object: the first of these, and how many they are.

    `form` is set if the document as a whole is not an object; `form_count` documents of this form are meant.
    """

    document: Document
    resources: tuple[Resource, ...]
    failures: tuple[ObjectFailure, ...] = ()
    failure_count: int = 0
    form: str = ""
    form_count: int = 1


class RetainedFile(Struct, frozen=True):
    """A file as it counts: its documents, and what is to be said about it. `name` is its path as it was read."""

    name: str
    documents: tuple[DocumentResult, ...]
    problems: tuple[Diagnostic, ...] = ()
    # Set if the file as a whole does not hold objects.
    form: str = ""


class RetainedResult(NamedTuple):
    """The files that count, in order, and what is to be said about files and folders that could not be read."""

    files: Sequence[RetainedFile]
    problems: Sequence[Diagnostic]
    lost: tuple[Diagnostic, ...] = ()


class FileRetention(Protocol):
    """A choice of what counts in place of files that are broken, empty or cannot be read."""

    def retain(self, read: ReadResult, objects: Callable[[CachedFile], RetainedFile]) -> RetainedResult:
        """Return the files that count; `objects` has the objects of a file as it is."""


class Loader:
    """Loads the same files and folders repeatedly.

    Every load gives the same result as a first load would. Objects that have not changed are the same Python objects as
    in the previous load; nothing is kept of earlier loads.
    """

    def __init__(
        self, paths: Iterable[str], settings: LoadSettings = DEFAULT_SETTINGS, *, leaves_out: bool = False
    ) -> None:
        """With `leaves_out`, objects of `settings.without` are left out here; otherwise that is up to the caller."""
        self.paths = tuple(paths)
        self.settings = settings
        self._leaves_out = leaves_out
        self.cache = FileCache()
        # If set, files that are broken keep what they had.
        self.retention: FileRetention | None = None
        # The objects of each document of the last load, by `Document.content`, which a document keeps when it moves.
        self._known: dict[object, DocumentResult] = {}
        self._repeated = RepeatedObjects()
        self._snapshots = SnapshotFiles()
        self._last: LoadResult | None = None

    def load(self) -> LoadResult:
        """Load everything as it is now. Problems become diagnostics and are never raised."""
        return self.load_documents(read_paths(self.paths, cache=self.cache, settings=self.settings.reading))

    @property
    def has_loaded(self) -> bool:
        """Whether anything was loaded before."""
        return self._last is not None

    def load_if_changed(self) -> LoadResult | None:
        """Load everything as it is now; return None if nothing has changed since the last load."""
        last, loaded = self._last, self.load()
        # A resource is equal only to itself, so equal tuples mean that nothing was parsed again.
        if last is not None and (last.resources, last.diagnostics) == (loaded.resources, loaded.diagnostics):
            return None
        return loaded

    def load_documents(self, read: ReadResult) -> LoadResult:
        """Make objects and a snapshot of the documents that were just read."""
        last = self._last
        listed: list[Resource] = []
        lost: tuple[Diagnostic, ...] = ()
        known, self._known = self._known, {}
        heads, self._snapshots = self._snapshots.heads, SnapshotFiles.find(read.documents)
        if heads != self._snapshots.heads:
            known = {}  # Objects may be in other namespaces, or those of a cluster.
        if self.retention is None:
            diagnostics = list(read.diagnostics)
            contents: Iterable[DocumentResult] = self._contents(read.documents, known)
        else:
            files, problems, lost = self.retention.retain(read, lambda file: self._objects_of_file(file, known))
            diagnostics = [*problems]
            for file in files:
                diagnostics += file.problems
            contents = chain.from_iterable([file.documents for file in files])
        failed: dict[SourceText, list[DocumentResult]] = {}
        unread = UnreadSet()
        for content in contents:
            listed += content.resources
            if content.form:
                unread.add(content.form, content.document.source, content.document.start, content.form_count)
            if content.failure_count:
                failed.setdefault(content.document.source, []).append(content)
        for documents in failed.values():
            diagnostics += _failure_diagnostics(documents)
        diagnostics += self._snapshots.problems(listed)
        if self._leaves_out and self.settings.without:
            listed = self._left_of(listed)
        live: Sequence[Resource] = ()
        given: Sequence[Resource] = ()
        cluster: Snapshot | None = None
        grants = self.settings.backend_ref_grants
        if self._snapshots.is_live:
            live, given, listed = self._snapshots.layers(listed)
            cluster = overlay(Snapshot.of(live, self._snapshots.unlisted, grants), given)
        resources = (*live, *given, *listed)
        if cluster is not None:
            snapshot = overlay(cluster, listed)
        elif last is not None and last.cluster_snapshot is None:
            snapshot = last.snapshot.updated_to(last.resources, resources)
        else:
            snapshot = Snapshot.of(resources, backend_ref_grants=grants)
        # The snapshot has fewer objects than were loaded only if an identity occurs twice.
        layers = (live, (*given, *listed)) if len(snapshot) < len(resources) else ()
        diagnostics += self._repeated.warnings(snapshot, *layers)
        for cached in read.files:
            if cached.form:
                unread.add(cached.form, cached.source)
            elif self._should_hold_objects(cached.source) and not (cached.documents or cached.problems):
                diagnostics.append(_empty_file(cached.source))
        diagnostics += map(_link_not_followed, read.leaving)
        self._last = LoadResult(
            resources,
            snapshot,
            sorted_diagnostics(diagnostics),
            read,
            lost,
            unread.omissions,
            self.namespace,
            self._snapshots.head,
            cluster,
        )
        return self._last

    @property
    def namespace(self) -> str:
        """The namespace of names and objects that have none."""
        return self.settings.namespace or self._snapshots.namespace or "default"

    def _should_hold_objects(self, source: SourceText) -> bool:
        """Whether the user named a file. One that is followed may become empty, and a text in memory may be."""
        return source.is_named and bool(self.paths) and self.retention is None

    def _left_of(self, resources: Sequence[Resource]) -> list[Resource]:
        """Return the objects without those that are left out. At the first load, UnknownName for what is not there.

        Later, an object that is left out may come and go.
        """
        from tierwall.resources.removal import find_named, without

        snapshot = Snapshot.of(resources)
        if not self.has_loaded:
            without([snapshot], self.settings.without, self.namespace)
        gone = {
            resource.identity
            for reference in self.settings.without
            if (resource := find_named(snapshot, reference, self.namespace, [])) is not None
        }
        return [resource for resource in resources if resource.identity not in gone]

    def _objects(self, document: Document, known: Mapping[object, DocumentResult]) -> DocumentResult:
        content = known.get(document.content)
        if content is None or content.document is not document:
            content = _document_objects(document, content, self.namespace, self._snapshots)
        self._known[document.content] = content
        return content

    def _objects_of_file(self, file: CachedFile, known: Mapping[object, DocumentResult]) -> RetainedFile:
        contents = (
            self._contents(file.documents, known)
            if len(file.documents) > MAX_OF_FILE
            else [self._objects(document, known) for document in file.documents]
        )
        return RetainedFile(file.source.name, tuple(contents), file.problems, file.form)

    def _contents(
        self, documents: Iterable[Document], known: Mapping[object, DocumentResult]
    ) -> Iterator[DocumentResult]:
        """Yield the objects of documents; of a file with many documents that are not objects, most are only counted."""
        useless: Counter[SourceText] = Counter()
        surplus: dict[tuple[SourceText, str], DocumentResult] = {}
        for document in documents:
            content, source = self._objects(document, known), document.source
            if (content.failures or content.form) and not content.resources:
                useless[source] += 1
                if useless[source] > MAX_OF_FILE:
                    before = surplus.get((source, content.form))
                    counts = content.failure_count, content.form_count
                    if before is not None:
                        counts = before.failure_count + counts[0], before.form_count + counts[1]
                    surplus[source, content.form] = DocumentResult(document, (), (), counts[0], content.form, counts[1])
                    del self._known[document.content]
                    continue
            yield content
        yield from surplus.values()


def _document_objects(
    document: Document, before: DocumentResult | None, namespace: str, snapshots: SnapshotFiles
) -> DocumentResult:
    """Return the objects of a document; `before` are those of the same document at its previous place."""
    if before is not None and not before.failures and not before.form:
        return DocumentResult(document, tuple([resource.at_origin(document) for resource in before.resources]))
    if is_snapshot_document(document.value):
        return DocumentResult(document, ())
    if form := document_form(document):
        return DocumentResult(document, (), form=form)
    resources: list[Resource] = []
    failures: list[ObjectFailure] = []
    count = 0
    for item in objects_in(document.value, document, (), namespace):
        if isinstance(item, Resource):
            resources.append(snapshots.as_read(item, document.source))
        else:
            count += 1
            if count <= MAX_OF_FILE:
                failures.append(item)
    return DocumentResult(document, tuple(resources), tuple(failures), count)


def _failure_diagnostics(documents: Sequence[DocumentResult]) -> Iterator[Diagnostic]:
    """Yield a diagnostic for the first parts of a file that are not objects, and one for all the others."""
    failures = ((failure, content.document) for content in documents for failure in content.failures)
    for failure, document in islice(failures, MAX_OF_FILE):
        yield failure.diagnostic(document)
    others = sum(content.failure_count for content in documents) - MAX_OF_FILE
    if others > 0:
        message = f"{others:,} more parts of this file are not Kubernetes objects"
        yield Diagnostic("TW006", message, documents[-1].document.position(), count=others)


def load_objects(
    values: Sequence[Any],
    origin: Origin | None = None,
    prefix: tuple[str | int, ...] = (),
    namespace: str = "default",
) -> tuple[Resource, ...]:
    """Make objects of plain values, such as the inline objects of a test; leave out what is not an object."""
    return tuple(
        resource
        for index, value in enumerate(values)
        for resource in objects_in(value, origin, (*prefix, index), namespace)
        if isinstance(resource, Resource)
    )


def read_objects(
    value: Any, namespace: str = "default", origin: Origin | None = None, prefix: tuple[str | int, ...] = ()
) -> Iterator[Resource | Diagnostic]:
    """Yield the objects in a plain value, which may be a list; yield a diagnostic for what is not an object."""
    for item in objects_in(value, origin, prefix, namespace):
        yield item if isinstance(item, Resource) else item.diagnostic(origin)


def _link_not_followed(path: str) -> Diagnostic:
    message = "the link leaves the given folder and is not followed"
    return Diagnostic("TW017", message, Position(path, 1, 1), hint="name what it leads to")


def _empty_file(source: SourceText) -> Diagnostic:
    return Diagnostic(
        "TW006",
        "expected a Kubernetes object, found nothing",
        source.position(0),
        expected="an object with `apiVersion` and `kind`",
        actual="nothing",
        hint="the file is empty; leave it out",
    )
