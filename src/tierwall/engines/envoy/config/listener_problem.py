"""Listeners of a Gateway that are not opened, and the reason in the status of each (Gateway API, `ListenerStatus`).

Listeners on one port of a Gateway must have one protocol (HTTPS and TLS go together), and each its own host name. Of
those that conflict, the first is served, in an order that the caller gives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from tierwall.attach.listener import Listener, terminates
from tierwall.attach.place import ROUTES, TCP_ROUTE, TLS_ROUTE
from tierwall.resources.resource import Identity
from tierwall.resources.snapshot import KindKey

UNSUPPORTED_PROTOCOL, PORT_UNAVAILABLE = "UnsupportedProtocol", "PortUnavailable"
HOSTNAME_CONFLICT, PROTOCOL_CONFLICT = "HostnameConflict", "ProtocolConflict"
INVALID_CERTIFICATE, NOT_PERMITTED = "InvalidCertificateRef", "RefNotPermitted"
INVALID_AUTHORITY, INVALID_AUTHORITY_KIND = "InvalidCACertificateRef", "InvalidCACertificateKind"
CONFLICTS = (HOSTNAME_CONFLICT, PROTOCOL_CONFLICT)
_KINDS = {"HTTP": ROUTES, "HTTPS": ROUTES, "TLS": (TLS_ROUTE,), "TCP": (TCP_ROUTE,)}
UNSUPPORTED_VALUE = "UnsupportedValue"
# What to write instead of what is not served.
PROTOCOL_HINTS = {
    "TLS": "use HTTPS, or `mode: Passthrough`",
    "UDP": "use a Gateway of another class",
}
# A listener by its owner and name.
ListenerKey: TypeAlias = tuple[Identity, str]


class ListenerProblem(NamedTuple):
    """The reason why a listener is not opened, and a sentence about it."""

    reason: str
    message: str
    # Whether the authorities for client certificates are at fault.
    is_authority: bool = False


def listener_key(listener: Listener) -> ListenerKey:
    """Return the owner and name of a listener."""
    return listener.owner.identity, listener.name


def separate_conflicts(
    listeners: Iterable[Listener],
) -> tuple[list[Listener], list[tuple[Listener, ListenerProblem]]]:
    """Return the listeners of one port that can be served together, and the others; earlier ones come first."""
    kept: list[Listener] = []
    others: list[tuple[Listener, ListenerProblem]] = []
    for listener in listeners:
        if listener.protocol not in _KINDS:
            message = f"protocol `{listener.protocol}` of {listener} is not served"
            others.append((listener, ListenerProblem(UNSUPPORTED_PROTOCOL, message)))
        elif terminates(listener):
            message = f"{listener} ends TLS for what is not HTTP, which is not served"
            others.append((listener, ListenerProblem(UNSUPPORTED_VALUE, message)))
        elif rival := next((other for other in kept if _conflict(other, listener)), None):
            reason = HOSTNAME_CONFLICT if _transport(rival) == _transport(listener) else PROTOCOL_CONFLICT
            message = f"{listener} is not served: {rival} has port {listener.port} already"
            others.append((listener, ListenerProblem(reason, message)))
        else:
            kept.append(listener)
    return kept, others


def _conflict(listener: Listener, other: Listener) -> bool:
    return _transport(listener) != _transport(other) or listener.hostname.lower() == other.hostname.lower()


def _transport(listener: Listener) -> str:
    """Return what a port speaks: with TLS, its server name tells listeners of both protocols apart."""
    return "TLS" if listener.protocol == "HTTPS" else listener.protocol


def served_kinds(listener: Listener) -> tuple[KindKey, ...]:
    """Return the kinds of routes that are served on a listener."""
    return () if terminates(listener) else _KINDS.get(listener.protocol, ())


def is_stream(listener: Listener) -> bool:
    """Whether the bytes of a listener go on as they come."""
    return listener.protocol in ("TLS", "TCP") and not terminates(listener)
