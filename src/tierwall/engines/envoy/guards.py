"""The policies on a way as settings of a route: which checkpoints it passes, and how its requests are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from tierwall.attach.listener import Listener
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy import mcp
from tierwall.engines.envoy.cache import Cache
from tierwall.engines.envoy.checkpoints import Checkpoint, on
from tierwall.engines.envoy.external_auth import Authorizer, authorizer
from tierwall.engines.envoy.names import (
    BODILESS,
    CHECKPOINT,
    FACTS,
    MCP,
    OPEN,
    SLOTS_PER_LEVEL,
    STRICT,
    STRICT_ARGUMENTS,
)
from tierwall.engines.envoy.options import Options
from tierwall.engines.envoy.rbac import Guard, depends_on, guard
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import Stack, model
from tierwall.tool.request import Backend
from tierwall.tool.rules import Policy

WhomToAsk = Callable[[Snapshot, Resource], Authorizer | str]


class Protection(Struct, frozen=True):
    """The policies on a way: a checkpoint for each level that has any."""

    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Whether there is any policy."""
        return bool(self.checkpoints)

    @property
    def arguments(self) -> frozenset[tuple[str, ...]]:
        """The tool arguments that rules look at."""
        return frozenset(path for one in self.checkpoints for guard in one.guards for path in guard.arguments)

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """What is wrong with the policies."""
        return tuple(found for one in self.checkpoints for guard in one.guards for found in guard.diagnostics)

    def settings(self, plain: bool) -> dict[str, Any]:
        """The settings of a route, by filter."""
        if not self.checkpoints:
            return {}
        says = {CHECKPOINT[one.level]: one.says(plain) for one in self.checkpoints}
        # INVARIANT: a filter of policies is on only where the facts are set, too, so that no client says where it is.
        out = {FACTS: mcp.facts(tuple(says.items()))}
        for one in self.checkpoints:
            out |= one.settings()
        return out


NO_PROTECTION = Protection()


class Guards:
    """The policies of one compilation. `authorizers`, `checkpoints` and `diagnostics` collect what turns up."""

    def __init__(self, snapshot: Snapshot, options: Options, cache: Cache, whom_to_ask: WhomToAsk = authorizer) -> None:
        self._whom_to_ask = whom_to_ask
        self._snapshot = snapshot
        self._options = options
        self._cache = cache
        self.authorizers: dict[str, Authorizer] = {}
        self.checkpoints: dict[str, Checkpoint] = {}
        self.diagnostics: dict[tuple[str, str, str], Diagnostic] = {}
        self.used: set[str] = set()
        self._made: dict[str, tuple[str, tuple[Policy, ...], Backend, int]] = {}

    def stack(self, gateway: Resource, listener: Listener, backend: Resource | None) -> Stack:
        """The policies between a listener and a backend, in their order."""
        return model(self._snapshot).stack(gateway, listener, backend)

    def protection(self, stack: Stack, backend: Backend, port: int) -> Protection:
        """What stands between a listener's port and a backend."""
        found = []
        for level, policies in (("gateway", stack.gateway), ("backend", stack.backend)):
            # INVARIANT: a target has at most five policies (attach.limits), so there is a slot for each.
            guards = [self._guard(policy, backend, port) for policy in policies[:SLOTS_PER_LEVEL]]
            if guards:
                made = Checkpoint.of(level, (one[0] for one in guards), (one[1] for one in guards))
                self.checkpoints[made.name] = made
                found.append(made)
                self._made[made.name] = level, policies, backend, port
        return Protection(tuple(found))

    def revised(self, snapshot: Snapshot, before: Resource, after: Resource) -> Guards | None:
        """The same ways with another text of one policy; None if they pass other checkpoints then."""
        out = Guards(snapshot, self._options, self._cache, self._whom_to_ask)
        out.authorizers, out.used = self.authorizers, self.used
        out.checkpoints, out._made = dict(self.checkpoints), dict(self._made)
        out.diagnostics = {key: one for key, one in self.diagnostics.items() if one.subject != after.reference}
        policy = model(snapshot).policy(after)
        for name, (level, policies, backend, port) in self._made.items():
            if any(one.resource is before for one in policies):
                now = tuple(policy if one.resource is before else one for one in policies)
                [made] = out.protection(Stack(**{level: now}), backend, port).checkpoints
                if made.name != name:
                    return None
        return out

    def filters(self) -> Mapping[str, Any]:
        """The configurations of the filters that have the policies of every way so far."""
        return self._cache.filters(self.checkpoints)

    def _guard(self, policy: Policy, backend: Backend, port: int) -> tuple[object, Guard]:
        """What a policy compiles to, and what tells it from others."""
        asks = self._whom_to_ask(self._snapshot, policy.resource) if policy.asks.all else None
        if isinstance(asks, Authorizer):
            self.authorizers[asks.cluster] = asks
        needs = set(depends_on(policy))
        key = (
            # Whether a name with a slash is scoped depends on which backends there are.
            (backend, tuple(_scoped(policy))) if "backend" in needs else backend.path if "path" in needs else None,
            port if "port" in needs else None,
            asks if isinstance(asks, str) else None if asks is None else (asks.cluster, asks.is_grpc),
            bool(policy.closed),
            self._options.largest_pattern,
        )
        kept = self._cache.of(policy.resource)
        name = f"{policy.resource.group}/{policy.reference}"
        self.used.add(name)
        found = kept.get(key)
        if found is None:
            found = kept[key] = guard(policy, backend, port, asks, self._options.largest_pattern)
        for one in found.diagnostics:
            self.diagnostics.setdefault((one.code, one.message, str(one.position)), one)
        return (name, self._cache.tag(policy.resource), key), found


def _scoped(policy: Policy) -> list[str]:
    return sorted(
        str(one)
        for rule in (*policy.allows.all, *policy.asks.all)
        for clause in rule.clauses
        for one in getattr(getattr(clause, "names", None), "scoped", ())
    )


def mcp_settings(arguments: frozenset[tuple[str, ...]], options: Options) -> dict[str, Any]:
    """The settings of a protected route for MCP messages, besides its policies."""
    if not arguments:
        return {MCP: on(), STRICT: on(), FACTS: mcp.facts()}
    reading = mcp.reading_arguments(arguments, options.largest_message)
    return {MCP: reading, STRICT_ARGUMENTS: on(), FACTS: mcp.facts()}


def plain_settings() -> dict[str, Any]:
    """The settings of a protected route for plain HTTP, besides its policies."""
    return {BODILESS: on(), FACTS: mcp.facts()}


def open_settings() -> dict[str, Any]:
    """The settings of a route that no policy protects."""
    return {OPEN: on()}
