"""Listeners of a Gateway that are not opened, and the reason in the status of each (Gateway API, `ListenerStatus`).

Listeners on one port of a Gateway must have one protocol, and each its own host name. Of those that conflict, the first
is served, in an order that the caller gives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from tierwall.attach.listener import Listener
from tierwall.resources.resource import Identity

UNSUPPORTED_PROTOCOL, PORT_UNAVAILABLE = "UnsupportedProtocol", "PortUnavailable"
HOSTNAME_CONFLICT, PROTOCOL_CONFLICT = "HostnameConflict", "ProtocolConflict"
INVALID_CERTIFICATE, NOT_PERMITTED = "InvalidCertificateRef", "RefNotPermitted"
INVALID_AUTHORITY, INVALID_AUTHORITY_KIND = "InvalidCACertificateRef", "InvalidCACertificateKind"
CONFLICTS = (HOSTNAME_CONFLICT, PROTOCOL_CONFLICT)
SERVED_PROTOCOLS = ("HTTP", "HTTPS")
# What to write instead of the protocols that are not served: no policy could see what goes through them.
PROTOCOL_HINTS = {
    "TLS": "use HTTPS, and TLS to the backend again if it needs it; for passthrough, use a Gateway of another class",
    "TCP": "use HTTP or HTTPS; for other traffic, use a Gateway of another class",
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
        if listener.protocol not in SERVED_PROTOCOLS:
            message = f"protocol `{listener.protocol}` of {listener} is not served"
            others.append((listener, ListenerProblem(UNSUPPORTED_PROTOCOL, message)))
        elif rival := next((other for other in kept if _conflict(other, listener)), None):
            reason = HOSTNAME_CONFLICT if rival.protocol == listener.protocol else PROTOCOL_CONFLICT
            message = f"{listener} is not served: {rival} has port {listener.port} already"
            others.append((listener, ListenerProblem(reason, message)))
        else:
            kept.append(listener)
    return kept, others


def _conflict(listener: Listener, other: Listener) -> bool:
    return listener.protocol != other.protocol or listener.hostname.lower() == other.hostname.lower()
