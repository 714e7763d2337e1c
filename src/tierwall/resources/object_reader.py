"""Make objects of plain values: lists become their items, and mistakes are said (docs/reference/sources.md).

`List` and typed lists (`PodList`, any `…List` with `items`) are their items, wherever an object may stand. Where an
item lacks `apiVersion` or `kind`, a typed list supplies it. A name that YAML reads as a boolean or a number is an
error, but the object counts under another word: what it guards fails closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.source import Origin
from tierwall.resources.document import Document
from tierwall.resources.kinds.served import scope_of
from tierwall.resources.resource import Resource

_NULLS = ("null", "Null", "NULL", "~")


class ObjectFailure(NamedTuple):
    """A part of a document that should be an object and is not, or its name: its path, and a description."""

    prefix: tuple[str | int, ...]
    description: str
    code: str = "TW006"

    def diagnostic(self, origin: Origin | None) -> Diagnostic:
        """Return what is to be said about it."""
        position = origin.position(self.prefix) if origin else None
        if self.code == "TW006":
            return Diagnostic(
                self.code,
                f"expected a Kubernetes object, found {self.description}",
                position,
                expected="an object with `apiVersion` and `kind`",
                actual=self.description,
            )
        key = self.prefix[-1]
        text = _text_at(origin, self.prefix)
        return Diagnostic(
            self.code,
            f"expected a string as `metadata.{key}`, found `{text or self.description}`",
            position,
            expected="a string",
            actual=self.description,
            hint=f'put it in quotes: `{key}: "{text or self.description}"`',
        )


def objects_in(
    value: Any, origin: Origin | None, prefix: tuple[str | int, ...], default_namespace: str
) -> Iterator[Resource | ObjectFailure]:
    """Yield the objects in a value, and what is wrong with it. Nothing recurses, however deep lists are nested."""
    todo: list[tuple[tuple[str | int, ...], Any, Any, Any]] = [(prefix, value, "", "")]
    while todo:
        prefix, value, list_version, list_kind = todo.pop()
        if not isinstance(value, dict):
            yield ObjectFailure(prefix, _describe(value))
            continue
        own_version, own_kind = value.get("apiVersion"), value.get("kind")
        api_version, kind = own_version or list_version, own_kind or list_kind
        if not api_version or not kind or type(api_version) is not str or type(kind) is not str:
            yield ObjectFailure(prefix, _describe_map(value))
            continue
        if kind.endswith("List") and "items" in value:
            items = [] if value["items"] is None else value["items"]
            if isinstance(items, list):
                of_kind = kind[:-4]
                of_version = api_version if of_kind else ""
                indexes = range(len(items) - 1, -1, -1)
                todo += [((*prefix, "items", index), items[index], of_version, of_kind) for index in indexes]
                continue
            if kind == "List":
                what = "a map" if isinstance(items, dict) else _describe(items)
                yield ObjectFailure((*prefix, "items"), f"{what} as `items` of a List")
                continue
        group, _, version = api_version.rpartition("/")
        if kind == "Snapshot" and group == "tierwall.io":
            yield ObjectFailure(prefix, "a Snapshot, which must be the first document of its file")
            continue
        metadata = value.get("metadata")
        name: Any = ""
        namespace: Any = ""
        if isinstance(metadata, dict):
            name, namespace = metadata.get("name"), metadata.get("namespace")
            if type(name) is not str:
                yield from _wrong_name(metadata, "name", origin, prefix)
                name = _word(name)
            if type(namespace) is not str:
                yield from _wrong_name(metadata, "namespace", origin, prefix)
                namespace = _word(namespace)
        scope = scope_of(api_version, kind)
        if scope is not None:
            if scope != "Namespaced":
                namespace = ""
            elif not namespace:
                namespace = default_namespace
        if not own_version or not own_kind:
            value = {**value, "apiVersion": api_version, "kind": kind}
        yield Resource(group, version, kind, namespace, name, value, origin, prefix)


def _word(name: Any) -> str:
    return "" if name is None else str(name)


def _wrong_name(
    metadata: dict[str, Any], key: str, origin: Origin | None, prefix: tuple[str | int, ...]
) -> Iterator[ObjectFailure]:
    """Yield a failure if a name is something other than a string, such as `y` or `1.0` without quotes."""
    value = metadata.get(key)
    path = (*prefix, "metadata", key)
    if value is None and (key not in metadata or key == "namespace" or _text_at(origin, path) not in _NULLS):
        return
    if isinstance(value, dict | list):
        return  # Admission says what is wrong, and quotes would not help.
    yield ObjectFailure(path, "null" if value is None else str(value).lower(), "TW016")


def _text_at(origin: Origin | None, path: tuple[str | int, ...]) -> str:
    """Return the plain scalar at a path as it is written; empty if it is not known."""
    if not isinstance(origin, Document) or path[-1] not in ("name", "namespace"):
        return ""
    position = origin.position(path)
    text = origin.source.line(position.line)[position.column - 1 :]
    for end in (" #", ",", "}", "\t"):
        text = text.partition(end)[0]
    text = text.strip()
    return text if len(text) <= 40 and ":" not in text else ""


def _describe_map(value: dict[str, Any]) -> str:
    lacking = [f"`{key}`" for key in ("apiVersion", "kind") if not value.get(key)]
    if lacking:
        return f"a map without {' and '.join(lacking)}"
    wrong = [f"`{value[key]}` as `{key}`" for key in ("apiVersion", "kind") if not isinstance(value[key], str)]
    return f"a map with {' and '.join(wrong)}"


def _describe(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    return "a string" if isinstance(value, str) else f"`{str(value).lower()}`"
