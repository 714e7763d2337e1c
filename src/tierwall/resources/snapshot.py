"""The immutable, indexed set of all objects of one load, shared by every decision.

A decision function takes a snapshot and a question and nothing else (docs/semantics.md#decisions-are-pure). Indexes and
plane models are built on first use and kept with the snapshot (`resources.once`). A changed snapshot copies only the
kinds that change.

Policies in a version that no API server serves are set aside (`resources.kinds.served`): the snapshot has them, and
they replace no other object, but no plane finds them. If a CustomResourceDefinition of their kind is among the objects,
they are like all others, and admission says whether it serves them. So are the objects of a cluster, which serves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from threading import RLock
from typing import Any, Literal, TypeAlias

from tierwall.core.labels import Selector
from tierwall.core.reference import Reference
from tierwall.resources.kinds.registry import is_built_in, versions_of
from tierwall.resources.kinds.served import is_set_aside, storage_key
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource, nested_map
from tierwall.resources.unlisted import UnlistedKind

KindKey: TypeAlias = tuple[str, str]
Name: TypeAlias = tuple[str, str]

# The references to backends in other namespaces that need a ReferenceGrant: those of routes, or also those of the
# policies and backends of agentgateway (docs/gateway.md#where-a-policy-attaches).
BackendRefGrants: TypeAlias = Literal["route", "strict"]

_DEFINITION: KindKey = ("apiextensions.k8s.io", "CustomResourceDefinition")
_NOTHING: Mapping[Name, Resource] = {}


class Snapshot:
    """All objects of one load, by group and kind, then by namespace and name.

    INVARIANT: nothing reachable from a snapshot changes after it was made, so threads may share it. `_memo` is only for
    `resources.once`, which keeps the values of pure functions of the snapshot there.
    """

    __slots__ = ("_computing", "_kinds", "_memo", "backend_ref_grants", "unlisted")

    def __init__(
        self,
        kinds: Mapping[KindKey, Mapping[Name, Resource]],
        unlisted: tuple[UnlistedKind, ...] = (),
        backend_ref_grants: BackendRefGrants = "route",
    ) -> None:
        self._kinds = kinds
        self.backend_ref_grants = backend_ref_grants
        # The kinds that a cluster has and that could not be read.
        self.unlisted = unlisted
        self._memo: dict[Any, Any] = {}
        self._computing = RLock()

    @classmethod
    def of(
        cls,
        resources: Iterable[Resource],
        unlisted: tuple[UnlistedKind, ...] = (),
        backend_ref_grants: BackendRefGrants = "route",
    ) -> Snapshot:
        """Make a snapshot of these objects; of two objects with the same identity the later counts."""
        listed = resources if isinstance(resources, Sequence) else tuple(resources)
        kinds: dict[KindKey, dict[Name, Resource]] = {}
        for resource in listed:
            kinds.setdefault(_key(resource), {})[resource.namespace, resource.name] = resource
        if any(map(is_set_aside, kinds)) and (defined := _defined_kinds(kinds)):
            kinds = {}
            for resource in listed:
                kinds.setdefault(_key(resource, defined), {})[resource.namespace, resource.name] = resource
        return cls(kinds, unlisted, backend_ref_grants)

    def with_unlisted(self, unlisted: Iterable[UnlistedKind]) -> Snapshot:
        """Return a snapshot of the same objects that says that more kinds could not be read."""
        return Snapshot(self._kinds, (*self.unlisted, *unlisted), self.backend_ref_grants)

    def without_unlisted(self, reason: str = "") -> Snapshot:
        """Return a snapshot of the same objects that does not say what could not be read for this reason, or any."""
        kept = tuple(entry for entry in self.unlisted if reason and entry.reason != reason)
        return Snapshot(self._kinds, kept, self.backend_ref_grants)

    def with_backend_ref_grants(self, mode: BackendRefGrants) -> Snapshot:
        """Return a snapshot of the same objects with another rule for references to other namespaces."""
        return self if mode == self.backend_ref_grants else Snapshot(self._kinds, self.unlisted, mode)

    def with_changes(self, put: Iterable[Resource] = (), drop: Iterable[Resource] = ()) -> Snapshot:
        """Return a snapshot with some objects added, replaced or dropped; it shares untouched kinds with this one."""
        put, drop = tuple(put), tuple(drop)
        kinds: dict[KindKey, Mapping[Name, Resource]] = dict(self._kinds)
        touched: dict[KindKey, dict[Name, Resource]] = {}
        aside = any(is_set_aside(_key(resource)) for resource in (*put, *drop))
        defined = _defined_kinds(kinds) if aside else frozenset[KindKey]()

        def bucket(resource: Resource) -> dict[Name, Resource]:
            key = _key(resource, defined)
            if key not in touched:
                kinds[key] = touched[key] = dict(kinds.get(key, _NOTHING))
            return touched[key]

        for resource in drop:
            bucket(resource).pop((resource.namespace, resource.name), None)
        for resource in put:
            bucket(resource)[resource.namespace, resource.name] = resource
        # Definitions say which versions are served.
        if _DEFINITION in touched:
            return Snapshot.of(tuple(Snapshot(kinds)), self.unlisted, self.backend_ref_grants)
        return Snapshot(kinds, self.unlisted, self.backend_ref_grants)

    def updated_to(self, before: Sequence[Resource], after: Sequence[Resource]) -> Snapshot:
        """Return the snapshot of the objects `after`; this is the snapshot of the objects `before`.

        If only contents differ, it shares untouched kinds with this one. If nothing differs, it is this one.
        """
        if before == after:  # a resource is equal only to itself
            return self
        # As many objects as identities: no object replaces another.
        if len(before) == len(after) == len(self):
            pairs = [(old, new) for old, new in zip(before, after, strict=True) if old is not new]
            if all(old.identity == new.identity and old.version == new.version for old, new in pairs):
                return self.with_changes(new for _, new in pairs)
        return Snapshot.of(after, self.unlisted, self.backend_ref_grants)

    def __iter__(self) -> Iterator[Resource]:
        for by_name in self._kinds.values():
            yield from by_name.values()

    def __len__(self) -> int:
        return sum(map(len, self._kinds.values()))

    def changes(self, before: Snapshot) -> Iterator[tuple[Resource | None, Resource | None]]:
        """Yield (before, after) for each object that differs from an earlier snapshot; None for an absent one.

        Policies that are set aside change nothing.
        """
        for key in sorted(key for key in self._kinds.keys() | before._kinds.keys() if not is_set_aside(key)):
            now, then = self._kinds.get(key, _NOTHING), before._kinds.get(key, _NOTHING)
            if now is then or now == then:  # a resource is equal only to itself
                continue
            yield from ((old, None) for name, old in then.items() if name not in now)
            yield from ((then.get(name), new) for name, new in now.items() if then.get(name) is not new)

    @property
    def is_live(self) -> bool:
        """Whether a cluster has some of the objects."""
        return any(resource.is_live for resource in self)

    @property
    def kinds(self) -> tuple[KindKey, ...]:
        """The group and kind of all objects, in order."""
        return tuple(sorted(key for key, by_name in self._kinds.items() if by_name and not is_set_aside(key)))

    @property
    def groups(self) -> frozenset[str]:
        """The API groups of all objects."""
        return frozenset(group for group, _ in self.kinds)

    def key_of(self, resource: Resource) -> KindKey:
        """Return the group and kind by which this snapshot finds an object."""
        key = _key(resource)
        return (resource.group, resource.kind) if is_set_aside(key) and key not in self._kinds else key

    @property
    def set_aside(self) -> Iterator[Resource]:
        """The policies in versions that are not served."""
        return (resource for key in self._kinds if is_set_aside(key) for resource in self._kinds[key].values())

    def of_kind(self, group: str, kind: str) -> Iterable[Resource]:
        """Return all objects of one kind in the order in which they were read."""
        return self._kinds.get((group, kind), _NOTHING).values()

    def get(self, group: str, kind: str, namespace: str, name: str) -> Resource | None:
        """Return one object, or None."""
        return self._kinds.get((group, kind), _NOTHING).get((namespace, name))

    def find(self, reference: Reference) -> Resource | None:
        """Return the object that a reference names, or None. Without a group, groups that Tierwall knows go first."""
        for group, kind in sorted(self._kinds, key=lambda key: (not is_built_in(*key), key)):
            if kind == reference.kind and reference.group in ("", group):
                resource = self._kinds[group, kind].get((reference.namespace, reference.name))
                if resource is not None:
                    return resource
        return None

    def in_namespace(self, group: str, kind: str, namespace: str) -> tuple[Resource, ...]:
        """Return the objects of one kind in one namespace."""
        return _by_namespace(self, group, kind).get(namespace, ())

    def selected(self, group: str, kind: str, selector: Selector, namespace: str | None = None) -> list[Resource]:
        """Return the objects of one kind (and of one namespace, if given) whose labels a selector selects.

        The first `In` requirement is looked up in an index by label; all requirements are checked on those objects.
        """
        for requirement in selector.requirements:
            if requirement.operator == "In":
                index = _by_label(self, group, kind)
                labels = [(requirement.key, value) for value in requirement.values]
                objects = [resource for label in labels for resource in index.get(label, ())]
                break
        else:
            every = self.of_kind(group, kind) if namespace is None else self.in_namespace(group, kind, namespace)
            objects = list(every)
        return [
            resource
            for resource in objects
            if namespace in (None, resource.namespace) and selector.matches(resource.labels)
        ]


def _key(resource: Resource, defined: Set[KindKey] = frozenset()) -> KindKey:
    plain = resource.group, resource.kind
    return (
        plain if resource.is_live or plain in defined else storage_key(resource.group, resource.version, resource.kind)
    )


def _defined_kinds(kinds: Mapping[KindKey, Mapping[Name, Resource]]) -> Set[KindKey]:
    """Return the group and kind of all CustomResourceDefinitions. Kinds of Kubernetes cannot be defined."""
    defined: set[KindKey] = set()
    for definition in kinds.get(_DEFINITION, _NOTHING).values():
        group, kind = definition.spec.get("group"), nested_map(definition.spec, "names").get("kind")
        if (
            isinstance(group, str)
            and isinstance(kind, str)
            and all(version.is_crd for version in versions_of(group, kind).values())
        ):
            defined.add((group, kind))
    return defined


@per_snapshot
def _by_namespace(snapshot: Snapshot, group: str, kind: str) -> Mapping[str, tuple[Resource, ...]]:
    index: dict[str, list[Resource]] = {}
    for resource in snapshot.of_kind(group, kind):
        index.setdefault(resource.namespace, []).append(resource)
    return {namespace: tuple(resources) for namespace, resources in index.items()}


@per_snapshot
def _by_label(snapshot: Snapshot, group: str, kind: str) -> Mapping[tuple[str, str], Sequence[Resource]]:
    index: dict[tuple[str, str], list[Resource]] = {}
    for resource in snapshot.of_kind(group, kind):
        for key, value in resource.labels.items():
            # Admission refuses a value that is not a string; no selector selects it.
            if isinstance(value, str):
                index.setdefault((key, value), []).append(resource)
    return index
