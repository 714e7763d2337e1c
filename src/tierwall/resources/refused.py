"""Objects of Tierwall's own kinds that no cluster would have (docs/reference/sources.md#what-is-not-considered).

`invalid` ones are refused by admission, or have a misspelled kind; `version` ones are in a version that is not served.
Each is named in the answers that it could change, with what follows from it there (`resources.plane_kinds`). Of kinds
with many objects, only those that a question names are judged, unless every object is: a cluster has 100,000 pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple

from tierwall.core.answer import Omission
from tierwall.resources.kinds.registry import is_built_in
from tierwall.resources.kinds.served import home_group, unserved_version
from tierwall.resources.once import per_resource, per_snapshot
from tierwall.resources.plane_kinds import PlaneKind, judged_kinds
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.target_refs import targets_others
from tierwall.resources.validity import UNREADABLE, admission_problems, defined_kinds
from tierwall.values.pattern import pattern

MAX_EXAMPLES = 2
_LEFT_OUT = "left out here"
_ENDPOINTS = ("Pod", "Namespace", "Node")
_NAME = pattern("[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_KEY = pattern("([a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = pattern("[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class InvalidObject(NamedTuple):
    """An object that no cluster would have, and what follows from it."""

    resource: Resource
    reason: str
    effect: str


def refusals(
    snapshot: Snapshot,
    plane: str,
    namespaces: Iterable[str] | None,
    named: Iterable[Resource],
    places: Set[tuple[str, str, str]],
    every: bool,
) -> list[Omission]:
    """Return the refused objects that could matter to a plane in some namespaces; None stands for all.

    Objects without a namespace always matter. `named` are objects of the question, `places` its targets. With `every`,
    objects of kinds that have many are judged, too.
    """
    objects: list[InvalidObject] = []
    for namespace in (None,) if namespaces is None else ("", *filter(None, namespaces)):
        objects += _refused(snapshot, plane, namespace, every)
    for resource in named:
        line = judged_kinds(plane).get(snapshot.key_of(resource))
        if line is not None and line.many and not every and not is_plain(resource):
            objects += _refusal(snapshot, resource, line)
    grouped: dict[tuple[str, str, str, str], list[Resource]] = {}
    for resource, reason, effect in dict.fromkeys(objects):
        if not targets_others(snapshot, resource, plane, places):
            grouped.setdefault((reason, resource.group, resource.kind, effect), []).append(resource)
    return [
        Omission(
            reason=reason,
            kind=kind,
            group=group,
            count=len(group_objects),
            examples=tuple(resource.reference for resource in group_objects[:MAX_EXAMPLES]),
            at=group_objects[0].position(),
            effect=effect,
        )
        for (reason, group, kind, effect), group_objects in grouped.items()
    ]


@per_snapshot
def _refused(snapshot: Snapshot, plane: str, namespace: str | None, every: bool) -> tuple[InvalidObject, ...]:
    """Return the refused objects of a namespace, of all namespaces (None), or those that have none (an empty name)."""
    here = [entry for entry in _without_kind(snapshot, plane) if namespace in (None, entry.resource.namespace)]
    for (group, kind), line in judged_kinds(plane).items():
        if line.many and not every:
            continue
        objects = snapshot.of_kind(group, kind) if namespace is None else snapshot.in_namespace(group, kind, namespace)
        for resource in objects:
            here += _refusal(snapshot, resource, line)
    return tuple(sorted(here, key=lambda entry: (entry.reason, entry.resource.kind, place_and_name(entry.resource))))


def place_and_name(resource: Resource) -> tuple[str, int, Identity]:
    """Return a sort key that does not depend on the order in which objects were read: place, then name."""
    at = resource.position()
    return (at.file, at.line, resource.identity) if at is not None else ("", 0, resource.identity)


def _refusal(snapshot: Snapshot, resource: Resource, line: PlaneKind) -> Iterator[InvalidObject]:
    problems = admission_problems(snapshot, resource)
    if resource.is_live and any(problem.code == UNREADABLE for problem in problems):
        yield InvalidObject(resource, "invalid", f"has parts that are not known here; {line.closed}")
    elif problems.errors:
        if unserved_version(resource.api_version, resource.kind) is not None:
            yield _unserved(resource, line.closed)
        else:
            yield InvalidObject(resource, "invalid", f"refused by an API server; {line.closed}")


@per_resource
def is_plain(resource: Resource) -> bool:
    """Whether nothing is odd about what an endpoint is matched by: its name, labels and ports.

    Admission takes ten times as long, and a program asks thousands of questions a second.
    """
    if resource.kind not in _ENDPOINTS or not _NAME.fullmatch(resource.name):
        return False
    for key, value in resource.labels.items():
        if type(value) is not str or not _KEY.fullmatch(key) or (value and not _VALUE.fullmatch(value)):
            return False
    labels = resource.metadata.get("labels")
    if resource.kind != "Pod":
        return labels is None or isinstance(labels, dict)
    spec = resource.value.get("spec", {})
    is_map = isinstance(spec, dict) and isinstance(labels, dict | None)
    return is_map and spec.get("hostNetwork") in (None, True, False) and _has_plain_ports(spec)


def _has_plain_ports(spec: Mapping[str, Any]) -> bool:
    for key in ("containers", "initContainers"):
        containers = spec.get(key, [])
        if not isinstance(containers, list):
            return False
        for container in containers:
            ports = container.get("ports", []) if isinstance(container, dict) else None
            if not isinstance(ports, list):
                return False
            for port in ports:
                if not isinstance(port, dict) or type(number := port.get("containerPort")) is not int:
                    return False
                name, protocol = port.get("name", "p"), port.get("protocol", "TCP")
                is_known = protocol in ("TCP", "UDP", "SCTP") and isinstance(name, str) and len(name) <= 15
                if not 1 <= number <= 65535 or not is_known or not _VALUE.fullmatch(name):
                    return False
    return True


def _unserved(resource: Resource, consequence: str) -> InvalidObject:
    effect = f"not served by any supported API server as `{resource.api_version}`; {consequence}"
    return InvalidObject(resource, "version", effect)


@per_snapshot
def _without_kind(snapshot: Snapshot, plane: str) -> tuple[InvalidObject, ...]:
    """Return the objects whose version is not served or whose kind is misspelled, if a plane would have read them."""
    lines = judged_kinds(plane)
    objects = [
        _unserved(resource, _LEFT_OUT)
        for resource in snapshot.set_aside
        if (home_group(resource.group, resource.kind), resource.kind) in lines
    ]
    unknown = [key for key in snapshot.kinds if not is_built_in(*key)]
    if not unknown:
        return tuple(objects)
    from tierwall.resources.kinds.misspelling import misspelled_kind

    defined = defined_kinds(snapshot)
    for key in unknown:
        meant = misspelled_kind(*key) if key not in defined else None
        if meant is not None and (meant.group, meant.kind) in lines:
            effect = f"refused by an API server and {_LEFT_OUT}" + (f": {meant.hint}" if meant.hint else "")
            here = (resource for resource in snapshot.of_kind(*key) if not resource.is_live)
            objects += [InvalidObject(resource, "invalid", effect) for resource in here]
    return tuple(objects)
