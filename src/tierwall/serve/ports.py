"""Leaves out the ports that an Envoy on this machine cannot open, so that they do not keep the others closed.

A port may be taken by another program, or be reserved for root. Envoy would refuse its listener. It shares ports with
other Envoys, which would get part of the requests; binding without sharing finds those, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from msgspec.structs import replace

from tierwall.attach.listener import gateway_listeners
from tierwall.attach.place import GATEWAY
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.engines.envoy.config.compile import XdsResources
from tierwall.engines.envoy.config.options import SocketAddress
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.server import bind

UNAVAILABLE = "TW631"
RETRY_SECONDS = 10.0


class PortCheck:
    """The ports that cannot be opened, by listener name, with the reason; never any if Envoys run elsewhere."""

    def __init__(self, is_local: bool) -> None:
        self._is_local = is_local
        self._opened: frozenset[SocketAddress] = frozenset()
        self._left_out: dict[str, tuple[SocketAddress, str]] = {}
        # Listeners whose port Envoy itself could not open, with its words and the time of the next attempt.
        self._failed: dict[str, tuple[str, float]] = {}

    @property
    def left_out(self) -> tuple[str, ...]:
        """The names of the listeners that are left out, sorted."""
        return tuple(sorted(self._left_out))

    def usable(self, resources: XdsResources) -> XdsResources:
        """Return a configuration without the ports that cannot be opened. Those that Envoy has open stay."""
        if not self._is_local:
            return resources
        self._left_out, usable, opened = {}, {}, set()
        for name, listener in resources.listeners.items():
            address = SocketAddress(listener.address.socket_address.address, listener.address.socket_address.port_value)
            reason = self._failure(name) or ("" if address in self._opened else _problem(address))
            if reason:
                self._left_out[name] = address, reason
            else:
                usable[name] = listener
                opened.add(address)
        self._opened = frozenset(opened)
        return replace(resources, listeners=usable) if self._left_out else resources

    def any_became_free(self) -> bool:
        """Whether a port that was left out can be opened now."""
        return any(not self._failure(name) and not _problem(address) for name, (address, _) in self._left_out.items())

    def note_failures(self, failures: Mapping[str, str]) -> bool:
        """Note the words of an Envoy that could not open the ports of these listeners; False if it runs elsewhere."""
        again = time.monotonic() + RETRY_SECONDS
        if self._is_local:
            self._failed |= {name: (words, again) for name, words in failures.items()}
        return self._is_local and bool(failures)

    def _failure(self, name: str) -> str:
        words, again = self._failed.get(name, ("", 0.0))
        return words if time.monotonic() < again else ""

    def diagnostics(self, snapshot: Snapshot) -> tuple[Diagnostic, ...]:
        """Return a diagnostic for each port that is left out, at the listener that wants it."""
        return tuple(_diagnostic(snapshot, name, *self._left_out[name]) for name in self.left_out)


def _problem(address: SocketAddress) -> str:
    """Return why an address cannot be listened on, or an empty string."""
    try:
        bind(*address).close()
    except InputError as error:
        return error.diagnostics[0].message
    return ""


def _diagnostic(snapshot: Snapshot, name: str, address: SocketAddress, reason: str) -> Diagnostic:
    _, namespace, gateway_name, port = name.split("/")
    gateway = snapshot.get(*GATEWAY, namespace, gateway_name)
    message = f"{reason}; this port is not served, everything else is"
    if gateway is None:
        return Diagnostic(UNAVAILABLE, message)
    for listener in gateway_listeners(snapshot, gateway):
        if str(listener.port) == port:
            return listener.owner.diagnostic(UNAVAILABLE, message, ("spec", "listeners", listener.number, "port"))
    return gateway.diagnostic(UNAVAILABLE, message)
