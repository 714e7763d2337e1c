"""One Kubernetes object as it was read: its identity, its plain value, and where each part of it was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.reference import Reference
from tierwall.core.source import Origin, Path, Position
from tierwall.values.time import FIRST_NS, LAST_NS, parse_time

# Group, kind, namespace and name.
Identity: TypeAlias = tuple[str, str, str, str]
Seniority: TypeAlias = tuple[bool, int, str]

_NO_LABELS: Mapping[str, str] = {}


class Resource(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An object of a snapshot. `value` is the whole object and is never changed.

    INVARIANT: `gc=False` holds because a resource never takes part in a reference cycle: values are JSON trees, and
    neither origins nor what the memo keeps know anything of resources.
    """

    group: str
    version: str
    kind: str
    namespace: str
    name: str
    value: dict[str, Any]
    origin: Origin | None = None
    # Where the object stands inside its document: ("items", 3) for the fourth item of a List.
    prefix: tuple[str | int, ...] = ()
    # For `resources.once` alone, which keeps here what pure functions of the object give.
    _memo: dict[Any, Any] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self.api_version} {self.reference}>"

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def reference(self) -> Reference:
        """`Kind/namespace/name` in the object's own spelling."""
        return Reference(self.kind, self.namespace, self.name)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """`metadata`, or nothing where it is no map."""
        metadata = self.value.get("metadata")
        return metadata if isinstance(metadata, dict) else {}

    @property
    def spec(self) -> Mapping[str, Any]:
        """`spec`, or nothing where it is no map."""
        spec = self.value.get("spec")
        return spec if isinstance(spec, dict) else {}

    @property
    def labels(self) -> Mapping[str, str]:
        """`metadata.labels`, or nothing where it is no map."""
        labels = self.metadata.get("labels")
        return labels if isinstance(labels, dict) else _NO_LABELS

    @property
    def identity(self) -> Identity:
        """What tells an object from others: any version of it is the same object."""
        return self.group, self.kind, self.namespace, self.name

    @property
    def seniority(self) -> Seniority:
        """The sort key of age, then name (docs/semantics.md#ties-go-by-age-then-name)."""
        return seniority_key(self.metadata.get("creationTimestamp"), self.namespace, self.name)

    def at_origin(self, origin: Origin) -> Resource:
        """The object that has the same value elsewhere. Problems have places, so only their absence moves along."""
        memo = {function: result for function, result in self._memo.copy().items() if result == ()}
        return Resource(
            self.group, self.version, self.kind, self.namespace, self.name, self.value, origin, self.prefix, memo
        )

    def has_same_content(self, other: Resource) -> bool:
        """Whether another object says the same in the same version; `1` and `true` are not the same."""
        if self.version != other.version:
            return False
        return self.value is other.value or (self.value == other.value and repr(self.value) == repr(other.value))

    def position(self, path: Path = (), key: bool = False) -> Position | None:
        """Where the node at `path` of this object, or its key, was written."""
        return self.origin.position((*self.prefix, *path), key) if self.origin is not None else None

    def diagnostic(
        self,
        code: str,
        message: str,
        path: Path = (),
        *,
        key: bool = False,
        expected: str = "",
        actual: str = "",
        hint: str = "",
        related: tuple[tuple[str, Position | None], ...] = (),
    ) -> Diagnostic:
        """A problem with this object, at the node at `path` or at its key."""
        return Diagnostic(code, message, self.position(path, key), expected, actual, hint, self.reference, related)


def timestamp(text: object) -> int | None:
    """An RFC 3339 time as nanoseconds since 1970, or None if the text is not one that a clock can show."""
    moment = parse_time(text)
    return moment.ns if moment is not None and FIRST_NS <= moment.ns <= LAST_NS else None


def seniority_key(created: object, namespace: str, name: str) -> Seniority:
    """The order that settles every tie outside the network plane (docs/semantics.md#ties-go-by-age-then-name).

    Older first, then `namespace/name` as one string; what has no readable timestamp comes last.
    """
    ns = timestamp(created)
    return ns is None, ns or 0, f"{namespace}/{name}" if namespace else name


def nested_map(value: object, *path: str) -> Mapping[str, Any]:
    """The map at a path inside another one; an empty one where there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def list_of_maps(value: object) -> Sequence[Mapping[str, Any]]:
    """The maps in a list, by number; what is not a map counts as an empty one, what is not a list as an empty list."""
    return [item if isinstance(item, dict) else {} for item in value] if isinstance(value, list) else ()
