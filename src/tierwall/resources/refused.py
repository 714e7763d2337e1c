"""Objects of Tierwall's own kinds that no cluster would have (docs/reference/sources.md#what-is-not-considered).

`invalid` ones are refused by admission, or have a misspelled kind; `version` ones are in a version that is not served.
Each is named in the answers that it could change, with what follows from it there. `kinds/data/planes.json` has the
kinds that each plane reads, and what follows if an object of them is refused (`closed`). Of kinds with `many` objects,
only those that a question names are judged, unless every object is: a cluster has 100,000 pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache
from typing import NamedTuple

import msgspec

from tierwall.core.answer import Omission
from tierwall.resources.kinds.misspelling import misspelled_kind
from tierwall.resources.kinds.registry import is_built_in, read_data
from tierwall.resources.kinds.served import home_group, unserved_version
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.resources.target_refs import targets_others
from tierwall.resources.validity import admission_problems, installed_definitions

MAX_EXAMPLES = 2
_LEFT_OUT = "left out here"


class JudgedKind(msgspec.Struct, frozen=True):
    """A line of the table."""

    plane: str
    group: str
    kinds: tuple[str, ...]
    closed: str = "read here as far as possible"
    many: bool = False


class InvalidObject(NamedTuple):
    """An object that no cluster would have, and what follows from it."""

    resource: Resource
    reason: str
    effect: str


@cache
def _table() -> Mapping[str, Mapping[KindKey, JudgedKind]]:
    table: dict[str, dict[KindKey, JudgedKind]] = {}
    for line in msgspec.convert(read_data("planes.json"), tuple[JudgedKind, ...]):
        table.setdefault(line.plane, {}).update({(line.group, kind): line for kind in line.kinds})
    return table


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
        line = _table()[plane].get(snapshot.key_of(resource))
        if line is not None and line.many and not every:
            objects += _refusal(snapshot, resource, line)
    grouped: dict[tuple[str, str, str, str], list[Resource]] = {}
    for resource, reason, effect in dict.fromkeys(objects):
        if not targets_others(resource, plane, places):
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
    for (group, kind), line in _table()[plane].items():
        if line.many and not every:
            continue
        objects = snapshot.of_kind(group, kind) if namespace is None else snapshot.in_namespace(group, kind, namespace)
        for resource in objects:
            here += _refusal(snapshot, resource, line)
    return tuple(sorted(here, key=lambda entry: (entry.reason, entry.resource.kind, place_and_name(entry.resource))))


def place_and_name(resource: Resource) -> tuple[str, int, str]:
    """Return a sort key that does not depend on the order in which objects were read: place, then name."""
    at = resource.position()
    return (at.file, at.line, str(resource.reference)) if at is not None else ("", 0, str(resource.reference))


def _refusal(snapshot: Snapshot, resource: Resource, line: JudgedKind) -> Iterator[InvalidObject]:
    if admission_problems(snapshot, resource).errors:
        if unserved_version(resource.api_version, resource.kind) is not None:
            yield _unserved(resource, line.closed)
        else:
            yield InvalidObject(resource, "invalid", f"refused by an API server; {line.closed}")


def _unserved(resource: Resource, consequence: str) -> InvalidObject:
    effect = f"not served by any supported API server as `{resource.api_version}`; {consequence}"
    return InvalidObject(resource, "version", effect)


@per_snapshot
def _without_kind(snapshot: Snapshot, plane: str) -> tuple[InvalidObject, ...]:
    """Return the objects whose version is not served or whose kind is misspelled, if a plane would have read them."""
    lines = _table()[plane]
    objects = [
        _unserved(resource, _LEFT_OUT)
        for resource in snapshot.set_aside
        if (home_group(resource.group, resource.kind), resource.kind) in lines
    ]
    unknown = [key for key in snapshot.kinds if not is_built_in(*key)]
    defined = installed_definitions(snapshot) if unknown else {}
    for key in unknown:
        meant = misspelled_kind(*key) if key not in defined else None
        if meant is not None and (meant.group, meant.kind) in lines:
            effect = f"refused by an API server and {_LEFT_OUT}" + (f": {meant.hint}" if meant.hint else "")
            objects += [InvalidObject(resource, "invalid", effect) for resource in snapshot.of_kind(*key)]
    return tuple(objects)
