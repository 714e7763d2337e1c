"""Checks one AccessPolicy or AgentgatewayPolicy in a large cluster: the findings of `tierwall check` about this policy.

The checks run on a small snapshot: the targets of the policy, whatever leads to them and whatever they lead to, and the
policies on all of these. Which objects belong together is found by the names that they mention, whatever their kind:
that is at times too much, never too little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tierwall.analyze.attachment import unattached_policies
from tierwall.analyze.gateway import (
    broken_expression_findings,
    ineffective_settings,
    lost_halves,
    widened_authorization,
)
from tierwall.analyze.tool import level_findings, name_findings, policy_findings
from tierwall.attach.closing import NO_SCOPE, closing_scope
from tierwall.attach.place import BACKEND, GATEWAY, LISTENER_SET, ROUTES, SERVICE, X_LISTENER_SET
from tierwall.attach.target import ACCESS_POLICIES, GATEWAY_POLICIES, targets
from tierwall.core.diagnostics import Diagnostic
from tierwall.resources.once import per_resource
from tierwall.resources.plane_kinds import kinds_read
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.resources.validity import DEFINITION, admission_problems, is_understood
from tierwall.tool.model import BACKENDS

KINDS: frozenset[KindKey] = frozenset({*ACCESS_POLICIES, *GATEWAY_POLICIES})
# With more objects than this around a policy, it is not compared with others.
MAX_OBJECTS = 300
# What all objects share: few, or looked up by namespace.
_SHARED: tuple[KindKey, ...] = (
    ("", "Namespace"),
    ("", "ServiceAccount"),
    ("gateway.networking.k8s.io", "GatewayClass"),
    ("gateway.networking.k8s.io", "ReferenceGrant"),
    DEFINITION,
    *BACKENDS,
)
_LISTENER_OWNERS = (GATEWAY, LISTENER_SET, X_LISTENER_SET)
_READ = frozenset(key for plane in ("gateway", "tool") for key in kinds_read(plane)) - {("", "Pod")}

Name = tuple[str, str]


class AttachedIndex:
    """The objects of these planes by the names that they mention, kept up to date from one snapshot to the next."""

    def __init__(self) -> None:
        self.snapshot = Snapshot({})
        self._before = Snapshot({})
        self._named: dict[Name, dict[Resource, None]] = {}
        self._mentioning: dict[Name, dict[Resource, None]] = {}
        # Policies by namespace whose targets are selected, or cannot be read; and backends that select Services.
        self._selecting: dict[str, dict[Resource, None]] = {}
        self._backends: dict[Resource, None] = {}

    def update(self, snapshot: Snapshot) -> None:
        """Take over what has changed."""
        put: list[Resource] = []
        drop: list[Resource] = []
        for old, new in snapshot.changes(self._before):
            for resource, changed, forget in ((old, drop, True), (new, put, False)):
                if resource is not None and _key(resource) in _READ:
                    changed.append(resource)
                    self._index(resource, forget)
            if new is not None and _key(new) in KINDS:
                # The answer is kept with the policy: no change around it waits for it.
                is_understood(snapshot, new)
        if put or drop:
            self.snapshot = self.snapshot.with_changes(put, drop)
        self._before = snapshot

    def _index(self, resource: Resource, forget: bool) -> None:
        buckets = [self._named.setdefault((resource.namespace, resource.name), {})]
        buckets += [self._mentioning.setdefault(name, {}) for name in mentioned(resource)]
        if _key(resource) in KINDS and _is_wide(resource):
            buckets.append(self._selecting.setdefault(resource.namespace, {}))
        if _key(resource) == BACKEND and _selects_services(resource):
            buckets.append(self._backends)
        for bucket in buckets:
            if forget:
                bucket.pop(resource, None)
            else:
                bucket[resource] = None

    def around(self, policy: Resource) -> tuple[Snapshot, bool]:
        """Return the objects that matter to a policy, with the policy itself, and whether these are all of them."""
        aimed = [target.resource for target in targets(self.snapshot, policy) if target.resource is not None]
        near, below = self._closure(aimed, self._above), self._closure(aimed, self._below)
        is_whole = max(len(near), len(below)) <= MAX_OBJECTS
        if is_whole:
            near |= below
        policies = self._policies(near)
        # A limit at any of its targets rejects a policy everywhere.
        elsewhere = [
            target.resource
            for other in policies
            for target in targets(self.snapshot, other)
            if target.resource is not None
        ]
        near |= dict.fromkeys(elsewhere)
        policies |= self._policies(elsewhere)
        is_whole = is_whole and len(near) + len(policies) <= 2 * MAX_OBJECTS
        shared = (resource for key in _SHARED for resource in self.snapshot.of_kind(*key))
        others = (other for other in policies if other.identity != policy.identity)
        objects = [*shared, *near, *others, policy]
        return Snapshot.of(objects, backend_ref_grants=self.snapshot.backend_ref_grants), is_whole

    def _closure(
        self, start: Iterable[Resource], following: Callable[[Resource], Iterable[Resource]]
    ) -> dict[Resource, None]:
        closure: dict[Resource, None] = {}
        waiting = list(start)
        while waiting and len(closure) <= MAX_OBJECTS:
            resource = waiting.pop()
            if resource not in closure:
                closure[resource] = None
                waiting += following(resource)
        return closure

    def _above(self, resource: Resource) -> Iterator[Resource]:
        """Yield what leads to an object."""
        key = _key(resource)
        if key in _LISTENER_OWNERS or key in ROUTES:
            yield from (other for other in self._objects(resource) if _key(other) in _LISTENER_OWNERS)
        if key in _LISTENER_OWNERS:
            return
        for other in self._referring(resource):
            if _key(other) in GATEWAY_POLICIES:
                yield from (target.resource for target in targets(self.snapshot, other) if target.resource is not None)
            elif _key(other) not in _LISTENER_OWNERS and _key(other) not in KINDS:
                yield other
        if key == SERVICE:
            yield from self._backends

    def _below(self, resource: Resource) -> Iterator[Resource]:
        """Yield what an object leads to."""
        key = _key(resource)
        if key in _LISTENER_OWNERS:
            for other in self._referring(resource):
                if _key(other) in ROUTES or _key(other) in _LISTENER_OWNERS:
                    yield other
            return
        yield from (other for other in self._objects(resource) if _key(other) not in _LISTENER_OWNERS)
        if resource in self._backends:
            yield from self.snapshot.of_kind(*SERVICE)

    def _objects(self, resource: Resource) -> Iterator[Resource]:
        """Yield the objects that an object mentions, policies excepted."""
        for name in mentioned(resource):
            yield from (other for other in self._named.get(name, ()) if _key(other) not in KINDS)

    def _referring(self, resource: Resource) -> list[Resource]:
        return list(self._mentioning.get((resource.namespace, resource.name), ()))

    def _policies(self, resources: Iterable[Resource]) -> dict[Resource, None]:
        """Return the policies that may target some objects."""
        policies: dict[Resource, None] = {}
        for resource in resources:
            policies |= {other: None for other in self._referring(resource) if _key(other) in KINDS}
            policies |= self._selecting.get(resource.namespace, {})
        return policies


def attached_findings(index: AttachedIndex, policy: Resource) -> tuple[list[Diagnostic], bool]:
    """Return what `tierwall check` would find about a policy, and whether it was compared with all others."""
    small, is_whole = index.around(policy)
    findings = [*admission_problems(small, policy), *unattached_policies(small)]
    if _key(policy) in ACCESS_POLICIES:
        findings += policy_findings(small, policy)
        if is_whole:
            findings += (*level_findings(small, policy), *name_findings(small, policy))
    else:
        findings += broken_expression_findings(small)
        if is_whole:
            findings += (
                *ineffective_settings(small, policy.reference),
                *widened_authorization(small),
                *lost_halves(small),
            )
    return [finding for finding in findings if finding.reference == policy.reference], is_whole


@per_resource
def mentioned(resource: Resource) -> frozenset[Name]:
    """Return namespace and name of whatever an object may refer to: every map in it that has a `name`."""
    names: set[Name] = set()
    waiting: list[Any] = [resource.spec]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            name, namespace = value.get("name"), value.get("namespace") or resource.namespace
            if isinstance(name, str) and isinstance(namespace, str):
                names.add((namespace, name))
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return frozenset(names)


def _is_wide(policy: Resource) -> bool:
    """Whether the names in a policy do not say what it targets."""
    if policy.spec.get("targetSelectors"):
        return True
    return _key(policy) in ACCESS_POLICIES and closing_scope(policy) is not NO_SCOPE


def _selects_services(backend: Resource) -> bool:
    return any("selector" in target for target in list_of_maps(nested_map(backend.spec, "mcp").get("targets")))


def _key(resource: Resource) -> KindKey:
    return resource.group, resource.kind
