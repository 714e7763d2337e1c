"""RBAC's rules: what one rule grants, and which rules a role has, aggregation included (Kubernetes' `pkg/apis/rbac`).

`pods` does not grant `pods/x`; `*` grants all subresources, `*/x` only subresource x; `resourceNames` never match an
empty name; the URL `/a/*` is the prefix `/a/`. A rule or selector that is malformed grants nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tierwall.api.attributes import Attributes
from tierwall.core.labels import Selector, SelectorError
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

GROUP = "rbac.authorization.k8s.io"


class Rule(msgspec.Struct, frozen=True):
    """One rule of a role, and where it stands."""

    verbs: frozenset[str]
    groups: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    urls: tuple[str, ...] = ()
    role: Resource | None = None
    index: int = 0

    def grants(self, attributes: Attributes) -> bool:
        """Whether this rule alone allows a request."""
        if attributes.verb not in self.verbs and "*" not in self.verbs:
            return False
        if not attributes.is_resource_request:
            return any(_url_matches(url, attributes.path) for url in self.urls)
        return (
            ("*" in self.groups or attributes.group in self.groups)
            and self._covers(attributes)
            and (not self.names or (attributes.name != "" and attributes.name in self.names))
        )

    def _covers(self, attributes: Attributes) -> bool:
        if "*" in self.resources or attributes.combined_resource in self.resources:
            return True
        return attributes.subresource != "" and f"*/{attributes.subresource}" in self.resources


def _url_matches(rule: str, path: str) -> bool:
    return rule in ("*", path) or (rule.endswith("*") and path.startswith(rule.rstrip("*")))


def rules_of(snapshot: Snapshot, kind: str, namespace: str, name: str) -> tuple[Rule, ...]:
    """The rules of a role; of one that does not exist, none."""
    if kind == "Role":
        role = snapshot.get(GROUP, "Role", namespace, name)
        return tuple(_own_rules(role)) if role is not None else ()
    if kind != "ClusterRole":
        return ()
    role = snapshot.get(GROUP, "ClusterRole", "", name)
    if role is None:
        return ()
    if not isinstance(role.value.get("aggregationRule"), Mapping):
        return tuple(_own_rules(role))
    return tuple(rule for part in _aggregated(snapshot, role) for rule in _own_rules(part))


def _aggregated(snapshot: Snapshot, role: Resource) -> Iterator[Resource]:
    """The plain roles that an aggregated one is made of, by name.

    The controller replaces the rules of an aggregated role by those of the roles it selects, and so on until nothing
    changes; what was written into the role itself is lost. Roles that only select each other have no rules.
    """
    found: dict[str, Resource] = {}
    seen = {role.name}
    todo = [role]
    while todo:
        one = todo.pop()
        for selected in _selected(snapshot, one):
            if selected.name in seen:
                continue
            seen.add(selected.name)
            if isinstance(selected.value.get("aggregationRule"), Mapping):
                todo.append(selected)
            else:
                found[selected.name] = selected
    yield from (found[name] for name in sorted(found))


def _selected(snapshot: Snapshot, role: Resource) -> Iterator[Resource]:
    for value in _items(role.value["aggregationRule"].get("clusterRoleSelectors")):
        try:
            selector = Selector.parse(value)
        except SelectorError:
            continue
        yield from snapshot.selected(GROUP, "ClusterRole", selector)


def _own_rules(role: Resource) -> Iterator[Rule]:
    for index, value in enumerate(_items(role.value.get("rules"))):
        if not isinstance(value, Mapping):
            continue
        resource_names = value.get("resourceNames")
        names = _words(resource_names)
        if resource_names and not names:
            continue
        yield Rule(
            _words(value.get("verbs")),
            _words(value.get("apiGroups")),
            _words(value.get("resources")),
            names,
            tuple(sorted(_words(value.get("nonResourceURLs")))),
            role,
            index,
        )


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _words(value: Any) -> frozenset[str]:
    return frozenset(one for one in _items(value) if isinstance(one, str))
