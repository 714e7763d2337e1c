"""The way that a question names: Gateway, listener and backend, found in the snapshot, or all that is wrong with it.

One listener may go without saying; of several one must be named (settled semantics, tool 12).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tierwall.attach.listener import Listener, gateway_listeners
from tierwall.attach.place import GATEWAY, SERVICE
from tierwall.core.diagnostics import Diagnostic, InputError, near_miss
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.tool.model import BACKENDS, Stack, backend_of, model
from tierwall.tool.request import Backend


class Way(NamedTuple):
    """The way of a request, and the policies on it."""

    gateway: Resource
    listener: Listener | None
    backend: Backend
    stack: Stack


def way(
    snapshot: Snapshot, gateway: object, listener: object, backend: object, problems: list[Diagnostic]
) -> Way | None:
    """The way that a question names, or None with problems."""
    try:
        if not (isinstance(gateway, str) and isinstance(listener, str | None) and isinstance(backend, str)):
            return _way(snapshot, gateway, listener, backend)
        if backend.startswith("Service/") and _knows_no_service(snapshot):
            # A Service that no object declares can be named at will: to keep these ways would fill the memory.
            return _way(snapshot, gateway, listener, backend)
        return _declared_way(snapshot, gateway, listener, backend)
    except InputError as error:
        problems += error.diagnostics
        return None


@per_snapshot
def _declared_way(snapshot: Snapshot, gateway: str, listener: str | None, backend: str) -> Way:
    return _way(snapshot, gateway, listener, backend)


def _way(snapshot: Snapshot, gateway: object, listener: object, backend: object) -> Way:
    problems: list[Diagnostic] = []
    found_gateway = _by_name(snapshot, "gateway", gateway, (GATEWAY,), problems)
    found_listener = _listener(snapshot, found_gateway, listener, problems) if found_gateway is not None else None
    found_backend = _backend(snapshot, backend, problems)
    if problems or found_gateway is None or found_backend is None:
        raise InputError(problems)
    resource = found_backend if isinstance(found_backend, Resource) else None
    return Way(
        found_gateway,
        found_listener,
        backend_of(found_backend) if isinstance(found_backend, Resource) else found_backend,
        model(snapshot).stack(found_gateway, found_listener, resource),
    )


def _listener(snapshot: Snapshot, gateway: Resource, name: object, problems: list[Diagnostic]) -> Listener | None:
    """The listener of a name, the Gateway's own before those of its ListenerSets; or the only one there is."""
    there = gateway_listeners(snapshot, gateway)
    names = list(dict.fromkeys(one.name for one in there))
    listed = f"its listeners are {', '.join(names)}" if names else "it has no listener"
    if name is None:
        if len(there) > 1:
            problems.append(
                problem(f"{gateway.reference} has {len(there)} listeners: `listener` must name one", listed)
            )
        return there[0] if len(there) == 1 else None
    found = [one for one in there if one.name == name]
    own = [one for one in found if one.owner is gateway]
    if not found:
        hint = near_miss(str(name), names) or listed
        problems.append(problem(f"there is no listener `{name}` on {gateway.reference}", hint))
    elif not own and len(found) > 1:
        owners = ", ".join(str(one.owner.reference) for one in found)
        problems.append(problem(f"listener `{name}` is ambiguous: {owners} have one of this name"))
    return next(iter(own or found), None)


def _backend(snapshot: Snapshot, value: object, problems: list[Diagnostic]) -> Resource | Backend | None:
    if isinstance(value, str):
        kind, _, rest = value.partition("/")
        if kind == "Service" and rest.count("/") == 1:
            if all(rest.split("/")) and _knows_no_service(snapshot):
                # Nothing is known about Services here, and none plays a part in the decision.
                namespace, _, name = rest.partition("/")
                return Backend(namespace, name, "Service")
            return _by_name(snapshot, "backend", rest, (SERVICE,), problems)
        group = next((group for group, _ in BACKENDS if kind == f"XBackend.{group}"), None)
        if rest.count("/") == 1 and (kind == "XBackend" or group is not None):
            kinds = BACKENDS if group is None else ((group, "XBackend"),)
            return _by_name(snapshot, "backend", rest, kinds, problems)
    return _by_name(snapshot, "backend", value, BACKENDS, problems)


def _knows_no_service(snapshot: Snapshot) -> bool:
    return not any(True for _ in snapshot.of_kind(*SERVICE))


def _by_name(
    snapshot: Snapshot, key: str, value: object, kinds: Iterable[KindKey], problems: list[Diagnostic]
) -> Resource | None:
    """The one object of some kinds that a `namespace/name` names."""
    kinds = tuple(kinds)
    kind = kinds[0][1]
    if not isinstance(value, str) or value.count("/") != 1 or not all(value.split("/")):
        found_words = "nothing" if value is None else f"`{value}`"
        form = "`namespace/name` or `Service/namespace/name`" if key == "backend" else "`namespace/name`"
        problems.append(problem(f"expected {form} as `{key}`, found {found_words}"))
        return None
    namespace, _, name = value.partition("/")
    found = [one for of in kinds if (one := snapshot.get(*of, namespace, name)) is not None]
    if not found:
        known = (f"{one.namespace}/{one.name}" for of in kinds for one in snapshot.of_kind(*of))
        problems.append(problem(f"there is no {kind} `{value}`", near_miss(value, known)))
        return None
    if len(found) > 1:
        choices = " or ".join(f"`{one.kind}.{one.group}/{value}`" for one in found)
        problems.append(problem(f"{kind} `{value}` is ambiguous: both groups have one", f"say {choices}"))
    return found[0]


def problem(message: str, hint: str = "") -> Diagnostic:
    """Something wrong with a question."""
    return Diagnostic("TW703", message, hint=hint)
