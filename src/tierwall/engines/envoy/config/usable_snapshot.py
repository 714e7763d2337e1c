"""The objects that a configuration may use: without those that admission or Envoy refuses.

An object that an API server would not have stored is as good as absent, as Gateway API says of references that do not
resolve: a backend answers 500, a listener without its certificate is not opened, a grant permits nothing. A Gateway
loses only the listeners at fault, if the fault is in them. Policies stay: a refused policy closes its targets
(docs/semantics.md#invalid-objects-fail-closed). The rules of a refused route answer 500: its requests must not
reach the backend of a wider route.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from tierwall.attach.place import (
    BACKEND,
    GATEWAY,
    GATEWAY_API,
    LISTENER_SET,
    ROUTES,
    SERVICE,
    STREAM_ROUTES,
    X_LISTENER_SET,
)
from tierwall.attach.target import ACCESS_POLICIES, GATEWAY_POLICIES
from tierwall.core.diagnostics import Diagnostic, Diagnostics
from tierwall.engines.envoy.config.fence import failure
from tierwall.resources.resource import Identity, Resource, list_of_maps
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.resources.validity import admission_problems, refused_paths
from tierwall.tool.model import BACKENDS

REFUSED = "TW636"
_SECRET, _CONFIG_MAP = ("", "Secret"), ("", "ConfigMap")
_OWNERS = (GATEWAY, LISTENER_SET, X_LISTENER_SET)
# What it means that an object of a kind is left out.
_CONSEQUENCES: Mapping[KindKey, str] = {
    **dict.fromkeys(_OWNERS, "its listeners are not opened"),
    **dict.fromkeys(ACCESS_POLICIES, "every request to its targets is denied"),
    **dict.fromkeys(GATEWAY_POLICIES, "requests to its targets are answered with 500"),
    **dict.fromkeys(ROUTES, "its rules answer 500"),
    **dict.fromkeys(STREAM_ROUTES, "its connections are closed"),
    **dict.fromkeys((SERVICE, BACKEND, *BACKENDS), "requests to it are answered with 500"),
    **dict.fromkeys((_SECRET, _CONFIG_MAP), "listeners that need it are not opened"),
    (GATEWAY_API, "ReferenceGrant"): "it permits nothing",
    ("", "Namespace"): "its labels do not count",
}
_HOSTNAME = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*", re.ASCII)
_CHECKED = tuple(key for key in _CONSEQUENCES if key not in (*ACCESS_POLICIES, *GATEWAY_POLICIES))


class UsableSnapshot(NamedTuple):
    """A snapshot of usable objects, what is wrong with the others, and the routes that answer 500."""

    snapshot: Snapshot = Snapshot.of(())
    diagnostics: tuple[Diagnostic, ...] = ()
    closed: frozenset[Identity] = frozenset()


def usable_snapshot(snapshot: Snapshot, refused: Mapping[Identity, str]) -> UsableSnapshot:
    """Return the usable objects of a snapshot; `refused` are those that Envoy refuses, with its words."""
    problems = [
        refusal(resource, words) for key, words in refused.items() if (resource := snapshot.get(*key)) is not None
    ]
    put: list[Resource] = []
    drop: list[Resource] = []
    closed: set[Identity] = set()
    for key in _CHECKED:
        for resource in snapshot.of_kind(*key):
            is_usable = resource.identity not in refused
            usable = None
            if is_usable:
                try:
                    judged = admission_problems(snapshot, resource)
                    if not judged:
                        continue
                    errors = judged.errors
                    is_usable = not errors
                    usable = _without_bad_listeners(snapshot, resource) if errors and key in _OWNERS else None
                except Exception as error:
                    errors, is_usable = Diagnostics([failure(resource, _CONSEQUENCES[key], error)]), False
                problems += errors
            if is_usable:
                continue
            if usable is not None:
                put.append(usable)
            elif key in ROUTES and _has_plain_hostnames(resource):
                closed.add(resource.identity)
            else:
                drop.append(resource)
    usable_objects = snapshot.with_changes(put, drop) if put or drop else snapshot
    return UsableSnapshot(usable_objects, tuple(problems), frozenset(closed))


def refusal(resource: Resource, words: str) -> Diagnostic:
    """Return the diagnostic of an object that Envoy refuses."""
    consequence = _CONSEQUENCES.get((resource.group, resource.kind), "it is left out")
    return resource.diagnostic(REFUSED, f"Envoy refuses {resource.reference}: {consequence}; it says: {words}")


def _without_bad_listeners(snapshot: Snapshot, owner: Resource) -> Resource | None:
    """Return a Gateway or ListenerSet without the listeners that admission refuses; None if it refuses other parts."""
    bad: set[int] = set()
    for path in refused_paths(snapshot, owner):
        match path:
            case ("spec", "listeners", int() as number, *_):
                bad.add(number)
            case _:
                return None
    # An empty entry is not a listener. The others keep their numbers, which positions and references use.
    listeners = [{} if number in bad else entry for number, entry in enumerate(list_of_maps(owner.spec["listeners"]))]
    return replace(owner, value={**owner.value, "spec": {**owner.spec, "listeners": listeners}}, _memo={})


def _has_plain_hostnames(route: Resource) -> bool:
    """Whether a route that answers 500 says clearly for which hosts."""
    names = route.spec.get("hostnames", [])
    return isinstance(names, list) and all(isinstance(name, str) and _HOSTNAME.fullmatch(name) for name in names)
