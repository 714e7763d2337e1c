"""The policies on a way as settings of a route, kept from one compilation to the next.

What a policy compiles to is kept as long as the policy stays as it is; a change of one policy compiles one policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from tierwall.attach.listener import Listener
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy import mcp
from tierwall.engines.envoy.external_auth import Authorizer, authorizer
from tierwall.engines.envoy.names import BACKEND_SLOTS, BODILESS, FACTS, GATEWAY_SLOTS, MCP, STRICT, Slot
from tierwall.engines.envoy.options import Options
from tierwall.engines.envoy.rbac import Guard, depends_on, guard
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import Stack, model
from tierwall.tool.request import Backend
from tierwall.tool.rules import Policy

WhomToAsk = Callable[[Snapshot, Resource], Authorizer | str]


class Cache:
    """What compilations keep for the next one; one for each sequence of snapshots."""

    def __init__(self) -> None:
        self.guards: dict[str, tuple[Resource, dict[Any, Guard]]] = {}
        self.messages: dict[tuple[str, str], Any] = {}
        self._before: Snapshot | None = None

    def begin(self, snapshot: Snapshot) -> None:
        """A compilation of this snapshot begins: policies that it has in common with the last need not be read anew."""
        if self._before is not None and self._before is not snapshot:
            model(snapshot).inherit(model(self._before))
        self._before = snapshot

    def of(self, resource: Resource) -> dict[Any, Guard]:
        """What is kept for a policy: nothing, if it has changed."""
        reference = f"{resource.group}/{resource.reference}"
        kept = self.guards.get(reference)
        if kept is None or (kept[0] is not resource and kept[0].value != resource.value):
            kept = self.guards[reference] = resource, {}
        return kept[1]

    def same(self, kind: str, name: str, message: Any) -> Any:
        """The message of the last compilation if it was equal: equal objects are compared faster than messages."""
        before = self.messages.get((kind, name))
        if before is not None and before == message:
            return before
        self.messages[kind, name] = message
        return message

    def forget(self, policies: set[str], messages: set[tuple[str, str]]) -> None:
        """Keep only these."""
        self.guards = {name: kept for name, kept in self.guards.items() if name in policies}
        self.messages = {key: kept for key, kept in self.messages.items() if key in messages}


class Protection(Struct, frozen=True, eq=False):
    """The policies on a way: settings by filter for either kind of route, and the arguments that rules look at."""

    mcp: dict[str, Any]
    plain: dict[str, Any]
    arguments: frozenset[tuple[str, ...]] = frozenset()
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Whether there is any policy."""
        return bool(self.mcp)


NO_PROTECTION = Protection({}, {})


class Guards:
    """The policies of one compilation. `authorizers` and `diagnostics` collect what turns up."""

    def __init__(self, snapshot: Snapshot, options: Options, cache: Cache, whom_to_ask: WhomToAsk = authorizer) -> None:
        self._whom_to_ask = whom_to_ask
        self._snapshot = snapshot
        self._options = options
        self._cache = cache
        self.authorizers: dict[str, Authorizer] = {}
        self.diagnostics: dict[tuple[str, str, str], Diagnostic] = {}
        self.used: set[str] = set()

    def stack(self, gateway: Resource, listener: Listener, backend: Resource | None) -> Stack:
        """The policies between a listener and a backend, in their order."""
        return model(self._snapshot).stack(gateway, listener, backend)

    def protection(self, stack: Stack, backend: Backend, port: int) -> Protection:
        """The settings of a route to a backend."""
        mcp_messages: dict[str, Any] = {}
        plain: dict[str, Any] = {}
        arguments: set[tuple[str, ...]] = set()
        diagnostics: list[Diagnostic] = []
        for slots, policies in ((GATEWAY_SLOTS, stack.gateway), (BACKEND_SLOTS, stack.backend)):
            # INVARIANT: a target has at most five policies (attach.limits), so there is a slot for each.
            for slot, policy in zip(slots, policies[: len(slots)], strict=False):
                found = self._guard(policy, slot, backend, port)
                mcp_messages.update(found.mcp)
                plain.update(found.plain)
                arguments |= found.arguments
                diagnostics += found.diagnostics
        return Protection(mcp_messages, plain, frozenset(arguments), tuple(diagnostics))

    def _guard(self, policy: Policy, slot: Slot, backend: Backend, port: int) -> Guard:
        asks = self._whom_to_ask(self._snapshot, policy.resource) if policy.asks.all else None
        if isinstance(asks, Authorizer):
            self.authorizers[asks.cluster] = asks
        needs = set(depends_on(policy))
        key = (
            slot,
            # Whether a name with a slash is scoped depends on which backends there are.
            (backend, _scoped(policy)) if "backend" in needs else backend.path if "path" in needs else None,
            port if "port" in needs else None,
            asks if isinstance(asks, str) else None if asks is None else asks[:4],
            self._options.largest_pattern,
        )
        kept = self._cache.of(policy.resource)
        self.used.add(f"{policy.resource.group}/{policy.resource.reference}")
        found = kept.get(key)
        if found is None:
            found = kept[key] = guard(policy, slot, backend, port, asks, self._options.largest_pattern)
        for one in found.diagnostics:
            self.diagnostics.setdefault((one.code, one.message, str(one.position)), one)
        return found


def _scoped(policy: Policy) -> frozenset[Any]:
    return frozenset(
        one
        for rule in (*policy.allows.all, *policy.asks.all)
        for clause in rule.clauses
        for one in getattr(getattr(clause, "names", None), "scoped", ())
    )


def mcp_settings(arguments: frozenset[tuple[str, ...]], options: Options) -> dict[str, Any]:
    """The settings of a protected route for MCP messages, besides its policies."""
    out = {STRICT: mcp.strict(bool(arguments)), FACTS: mcp.facts()}
    if arguments:
        out[MCP] = mcp.reading_arguments(arguments, options.largest_message)
    return out


def plain_settings() -> dict[str, Any]:
    """The settings of a protected route for plain HTTP, besides its policies."""
    return {MCP: mcp.not_mcp(), BODILESS: mcp.bodiless(), FACTS: mcp.facts()}


def open_settings() -> dict[str, Any]:
    """The settings of a route that no policy protects."""
    return {MCP: mcp.any_traffic()}
