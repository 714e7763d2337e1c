"""From files to a snapshot: documents become objects, lists become their items, identities are settled.

An object of a namespaced kind without a namespace is in the one that the reader says, which is `default` as it is for
kubectl. Of an object that is defined twice the later counts, with a warning; a document that is not an object is an
error. Nothing is judged here: admission is asked later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from tierwall.core.diagnostics import Diagnostic, Diagnostics, InputError, sorted_diagnostics
from tierwall.core.source import Origin
from tierwall.resources.document import Document
from tierwall.resources.kinds.registry import find_kind
from tierwall.resources.memory import FileCache
from tierwall.resources.read import ReadResult, read_paths, read_text
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import Snapshot


class Loaded(Struct, frozen=True):
    """Everything that was read: the objects, the snapshot of them, what was wrong, and the texts for showing it."""

    resources: tuple[Resource, ...]
    snapshot: Snapshot
    diagnostics: Diagnostics
    read: ReadResult

    @property
    def errors(self) -> Diagnostics:
        """What cannot be read, or is not an object."""
        return self.diagnostics.errors

    def line(self, file: str, number: int) -> str | None:
        """A line of a file as it was read, for showing what a diagnostic is about."""
        return self.read.line(file, number)


def load(paths: Iterable[str], namespace: str = "default", exclude: Sequence[str] = ()) -> Loaded:
    """Read files and folders; problems are collected, never raised."""
    return Loader(paths, namespace, exclude).load()


def load_text(text: str | bytes, name: str, namespace: str = "default") -> Loaded:
    """Read a text that is already in memory; problems are collected, never raised."""
    return Loader((), namespace).load_documents(read_text(text, name))


def read_document(path: str) -> Any:
    """The one document of a file (`-`: standard input), whatever it is; InputError if there is not exactly one."""
    read = read_paths([path])
    errors = Diagnostics(read.diagnostics).errors
    if not errors and len(read.documents) != 1:
        errors = Diagnostics([Diagnostic("TW703", f"expected one document in `{path}`, found {len(read.documents)}")])
    if errors:
        raise InputError(errors)
    return read.documents[0].value


class _Found(Struct, frozen=True):
    document: Document
    resources: tuple[Resource, ...]
    problems: tuple[Diagnostic, ...]


class Loader:
    """Reads the same files and folders again and again.

    Each load is what a first one would be, but what has not changed is the same object as in the load before. Nothing
    is kept of anything older.
    """

    def __init__(self, paths: Iterable[str], namespace: str = "default", exclude: Sequence[str] = ()) -> None:
        self.paths = tuple(paths)
        self._namespace = namespace
        self._exclude = tuple(exclude)
        self._memory = FileCache()
        # What was found in the documents of the last load, by their contents: a document that has moved is known again.
        self._found: dict[object, _Found] = {}
        self._twice: dict[tuple[Resource, Resource], Diagnostic] = {}
        self._last: Loaded | None = None

    def load(self) -> Loaded:
        """Everything as it is now; problems are collected, never raised."""
        return self.load_documents(read_paths(self.paths, memory=self._memory, exclude=self._exclude))

    @property
    def has_loaded(self) -> bool:
        """Whether there was a load before."""
        return self._last is not None

    def load_if_changed(self) -> Loaded | None:
        """Everything as it is now; None if that is what the last load found."""
        last, loaded = self._last, self.load()
        # Resources are equal only to themselves: the same ones say that nothing was read anew.
        if last is not None and (last.resources, last.diagnostics) == (loaded.resources, loaded.diagnostics):
            return None
        return loaded

    def load_documents(self, read: ReadResult) -> Loaded:
        """The objects in what was read just now."""
        last = self._last
        diagnostics = list(read.diagnostics)
        listed: list[Resource] = []
        known, self._found = self._found, {}
        for document in read.documents:
            content = known.get(document.content)
            if content is None or content.document is not document:
                content = _found(document, content, self._namespace)
            self._found[document.content] = content
            listed += content.resources
            diagnostics += content.problems
        resources = tuple(listed)
        snapshot = last.snapshot.updated_to(last.resources, resources) if last is not None else Snapshot.of(resources)
        # Only where an identity occurs twice a snapshot has fewer objects than were found.
        repeated = _repeated(resources) if len(snapshot) < len(resources) else ()
        self._twice = {pair: self._twice.get(pair) or _defined_twice(*pair) for pair in repeated}
        diagnostics += self._twice.values()
        self._last = Loaded(resources, snapshot, sorted_diagnostics(diagnostics), read)
        return self._last


def _found(document: Document, before: _Found | None, namespace: str) -> _Found:
    """The objects of a document; `before` is what was found when its value stood elsewhere."""
    if before is not None and not before.problems:
        return _Found(document, tuple([resource.at_origin(document) for resource in before.resources]), ())
    objects = list(_objects(document.value, document, (), "", "", namespace))
    return _Found(
        document,
        tuple([resource for resource in objects if isinstance(resource, Resource)]),
        tuple([problem for problem in objects if isinstance(problem, Diagnostic)]),
    )


def load_objects(
    values: Sequence[Any],
    origin: Origin | None = None,
    prefix: tuple[str | int, ...] = (),
    namespace: str = "default",
) -> tuple[Resource, ...]:
    """Objects given as plain values, as inline objects of a test are; what is not an object is left out."""
    return tuple(
        resource
        for index, value in enumerate(values)
        for resource in _objects(value, origin, (*prefix, index), "", "", namespace)
        if isinstance(resource, Resource)
    )


def read_objects(value: Any, namespace: str = "default") -> Iterator[Resource | Diagnostic]:
    """The objects in a plain value, which may be a list of them; what is not an object is a problem."""
    return _objects(value, None, (), "", "", namespace)


def _objects(
    value: Any, origin: Origin | None, prefix: tuple[str | int, ...], api_version: Any, kind: Any, home: str
) -> Iterator[Resource | Diagnostic]:
    """The objects in a value; `api_version` and `kind` are what a typed list says of items that do not say it."""
    if isinstance(value, dict):
        api_version = value.get("apiVersion", api_version)
        kind = value.get("kind", kind)
    if not isinstance(value, dict) or not isinstance(kind, str) or not isinstance(api_version, str) or not kind:
        yield _not_an_object(value, origin, prefix)
        return
    items = value.get("items")
    if kind.endswith("List") and isinstance(items, list):
        of_kind = kind[:-4]
        of_version = api_version if of_kind else ""
        for index, item in enumerate(items):
            yield from _objects(item, origin, (*prefix, "items", index), of_version, of_kind, home)
        return
    group, _, version = api_version.rpartition("/")
    metadata = value.get("metadata")
    name = namespace = ""
    if isinstance(metadata, dict):
        name = metadata.get("name") or ""
        namespace = metadata.get("namespace") or ""
    known = find_kind(api_version, kind)
    if known is not None:
        if known.scope != "Namespaced":
            namespace = ""
        elif not namespace:
            namespace = home
    yield Resource(group, version, kind, str(namespace), str(name), value, origin, prefix)


def _not_an_object(value: Any, origin: Origin | None, prefix: tuple[str | int, ...]) -> Diagnostic:
    description = _map(value) if isinstance(value, dict) else _name(value)
    return Diagnostic(
        "TW006",
        f"expected a Kubernetes object, found {description}",
        origin.position(prefix) if origin else None,
        expected="an object with `apiVersion` and `kind`",
        actual=description,
    )


def _map(value: dict[str, Any]) -> str:
    lacking = [f"`{key}`" for key in ("apiVersion", "kind") if not value.get(key)]
    if lacking:
        return f"a map without {' and '.join(lacking)}"
    wrong = [f"`{value[key]}` as `{key}`" for key in ("apiVersion", "kind") if not isinstance(value[key], str)]
    return f"a map with {' and '.join(wrong)}"


def _name(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    return "a string" if isinstance(value, str) else f"`{str(value).lower()}`"


def _repeated(resources: Iterable[Resource]) -> Iterator[tuple[Resource, Resource]]:
    """Each object that replaces one of the same identity, after that one."""
    first: dict[Identity, Resource] = {}
    for resource in resources:
        identity = resource.identity
        earlier = first.get(identity)
        first[identity] = resource
        # Tests are not objects of a cluster: two of one name do not replace each other.
        if earlier is not None and resource.name and resource.kind != "PolicyTest":
            yield earlier, resource


def _defined_twice(earlier: Resource, resource: Resource) -> Diagnostic:
    message = f"{resource.reference} is defined twice; the later one counts"
    return resource.diagnostic("TW007", message, related=(("defined here before", earlier.position()),))
