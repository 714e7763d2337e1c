"""One Kubernetes object as it was read: its identity, its plain value, and the position of each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.reference import Reference
from tierwall.core.source import Origin, Path, Position, rule_place
from tierwall.values.time import FIRST_NS, LAST_NS, parse_time

# Group, kind, namespace and name.
Identity: TypeAlias = tuple[str, str, str, str]
Seniority: TypeAlias = tuple[bool, int, str]

_NO_LABELS: Mapping[str, str] = {}


class Resource(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An object of a snapshot. `value` is the whole object and never changes.

    INVARIANT: `gc=False` is safe because a resource is never part of a reference cycle: values are JSON trees, and
    neither origins nor values in the memo refer to resources.
    """

    group: str
    version: str
    kind: str
    namespace: str
    name: str
    value: dict[str, Any]
    origin: Origin | None = None
    # The path of the object inside its document: ("items", 3) for the fourth item of a List.
    prefix: tuple[str | int, ...] = ()
    # Whether a cluster has the object: it was read from there, or from a snapshot of one.
    is_live: bool = False
    # Only `resources.once` uses it, to keep the values of pure functions of the object.
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
        """`metadata`; empty if it is not a map."""
        metadata = self.value.get("metadata")
        return metadata if isinstance(metadata, dict) else {}

    @property
    def spec(self) -> Mapping[str, Any]:
        """`spec`; empty if it is not a map."""
        spec = self.value.get("spec")
        return spec if isinstance(spec, dict) else {}

    @property
    def labels(self) -> Mapping[str, str]:
        """`metadata.labels`; empty if it is not a map."""
        labels = self.metadata.get("labels")
        return labels if isinstance(labels, dict) else _NO_LABELS

    @property
    def identity(self) -> Identity:
        """Group, kind, namespace and name. The version is not part of it: all versions are the same object."""
        return self.group, self.kind, self.namespace, self.name

    @property
    def seniority(self) -> Seniority:
        """The sort key of age, then name (docs/semantics.md#ties-go-by-age-then-name)."""
        return seniority_key(self.metadata.get("creationTimestamp"), self.namespace, self.name)

    def at_origin(self, origin: Origin) -> Resource:
        """Return this object at another place. Problems have positions, so only memos without problems are kept."""
        memo = {function: result for function, result in self._memo.copy().items() if result == ()}
        return Resource(
            self.group,
            self.version,
            self.kind,
            self.namespace,
            self.name,
            self.value,
            origin,
            self.prefix,
            self.is_live,
            memo,
        )

    def with_own_value(self) -> Resource:
        """Return this object with a copy of its value, for callers who may change it."""
        return msgspec.structs.replace(self, value=msgspec.to_builtins(self.value), _memo={})

    def has_same_content(self, other: Resource) -> bool:
        """Whether another object has the same version and value; `1` and `true` are different."""
        if self.version != other.version:
            return False
        return self.value is other.value or (self.value == other.value and repr(self.value) == repr(other.value))

    def position(self, path: Path = (), key: bool = False) -> Position | None:
        """Return the position of the node at `path` of this object, or of its key."""
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
        places: tuple[str, ...] = (),
        related_objects: tuple[str, ...] = (),
        example: str = "",
    ) -> Diagnostic:
        """Make a diagnostic about this object, at the node at `path` or at its key."""
        return Diagnostic(
            code,
            message,
            self.position(path, key),
            expected,
            actual,
            hint,
            self.reference,
            related,
            places=places or ((rule_place(path),) if path else ()),
            related_objects=related_objects,
            example=example,
        )


def parse_timestamp(text: object) -> int | None:
    """Parse an RFC 3339 time into nanoseconds since 1970; None if it is invalid or outside the years 1 to 9999."""
    moment = parse_time(text)
    return moment.ns if moment is not None and FIRST_NS <= moment.ns <= LAST_NS else None


def seniority_key(created: object, namespace: str, name: str) -> Seniority:
    """Return the key that breaks every tie outside the network plane (docs/semantics.md#ties-go-by-age-then-name).

    Older objects come first, then `namespace/name` as one string decides. Objects without a valid timestamp come last.
    """
    ns = parse_timestamp(created)
    return ns is None, ns or 0, f"{namespace}/{name}" if namespace else name


def nested_map(value: object, *path: str) -> Mapping[str, Any]:
    """Return the map at a path inside a value; an empty one if there is no map."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def list_of_maps(value: object) -> Sequence[Mapping[str, Any]]:
    """Return the maps in a list by index. An item that is not a map becomes an empty map; no list becomes no items."""
    return [item if isinstance(item, dict) else {} for item in value] if isinstance(value, list) else ()
