"""The snapshots of clusters among the files of a load (docs/clusters.md#snapshots).

Their objects are those of a cluster: templates of their workloads make no pods, and all other files lie over them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from msgspec import Struct
from msgspec.structs import replace

from tierwall.core.diagnostics import Diagnostic
from tierwall.resources.document import Document, SourceText
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot_document import (
    SnapshotDocument,
    incomplete,
    is_snapshot_document,
    misplaced,
    read_snapshot_document,
    too_many,
)
from tierwall.resources.unlisted import UnlistedKind


class SnapshotFile(Struct, frozen=True):
    """A file that begins with a Snapshot; `given` are its objects that came from files."""

    head: SnapshotDocument
    document: Document
    given: Set[Identity]


class SnapshotFiles(Struct, frozen=True, eq=False):
    """The files that are snapshots, and what is wrong with documents that should begin one."""

    files: Mapping[SourceText, SnapshotFile] = {}
    wrong: tuple[Diagnostic, ...] = ()

    @classmethod
    def find(cls, documents: Iterable[Document]) -> SnapshotFiles:
        """Find the snapshots among documents, which are in the order of their files."""
        files: dict[SourceText, SnapshotFile] = {}
        wrong: list[Diagnostic] = []
        source: SourceText | None = None
        for document in documents:
            before, source = source, document.source
            if not is_snapshot_document(document.value):
                continue
            head = misplaced(document) if before is source else read_snapshot_document(document)
            if isinstance(head, Diagnostic):
                wrong.append(head)
            else:
                files[source] = SnapshotFile(head, document, head.given_objects)
        return cls(files, tuple(wrong))

    @property
    def heads(self) -> Sequence[SnapshotDocument]:
        """The first documents; those of clusters first."""
        heads = [file.head for file in self.files.values()]
        return sorted(heads, key=lambda head: not head.cluster)

    @property
    def head(self) -> SnapshotDocument | None:
        """The first document of the snapshot of a cluster, or else of any other."""
        return next(iter(self.heads), None)

    @property
    def is_live(self) -> bool:
        """Whether there is a snapshot of a cluster."""
        return any(head.cluster for head in self.heads)

    @property
    def namespace(self) -> str:
        """The namespace of the context; empty without a snapshot."""
        return next((head.namespace for head in self.heads if head.namespace), "")

    @property
    def unlisted(self) -> tuple[UnlistedKind, ...]:
        """The kinds that could not be read."""
        return tuple(entry for head in self.heads for entry in head.not_considered)

    def as_read(self, resource: Resource, source: SourceText) -> Resource:
        """Return an object of a file as one of a cluster, if it is."""
        file = self.files.get(source)
        if file is None or not file.head.cluster or resource.identity in file.given:
            return resource
        return replace(resource, is_live=True)

    def problems(self, resources: Iterable[Resource]) -> Iterator[Diagnostic]:
        """Yield what is wrong with the snapshots: `resources` are all objects that were read."""
        yield from self.wrong
        clusters = [file.document for file in self.files.values() if file.head.cluster]
        if len(clusters) > 1:
            yield too_many(clusters)
        if not self.files:
            return
        counts = dict.fromkeys(self.files, 0)
        for resource in resources:
            origin = resource.origin
            if isinstance(origin, Document) and origin.source in counts:
                counts[origin.source] += 1
        for source, file in self.files.items():
            if (problem := incomplete(file.head, file.document, counts[source])) is not None:
                yield problem

    def layers(self, resources: Iterable[Resource]) -> tuple[list[Resource], list[Resource], list[Resource]]:
        """Return the objects of the cluster, those that lay over it when the snapshot was made, and all others."""
        live: list[Resource] = []
        given: list[Resource] = []
        others: list[Resource] = []
        for resource in resources:
            origin = resource.origin
            is_given = isinstance(origin, Document) and origin.source in self.files
            (live if resource.is_live else given if is_given else others).append(resource)
        return live, given, others
