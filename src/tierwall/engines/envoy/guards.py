"""The policies on a way as settings of a route: which checkpoints it passes, and how its requests are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from tierwall.attach.listener import Listener
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.stack import Stack
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
from tierwall.tool.methods import as_method
from tierwall.tool.model import model
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


class Made(NamedTuple):
    """A checkpoint with what it was made of: its policies, and whom they ask."""

    policies: tuple[Policy, ...]
    checkpoint: Checkpoint
    asked: tuple[Authorizer, ...]


class Guards:
    """The policies of one compilation. Of the ones before, if only policies differ, it takes over what is the same."""

    def __init__(
        self,
        snapshot: Snapshot,
        options: Options,
        cache: Cache,
        whom_to_ask: WhomToAsk = authorizer,
        before: Guards | None = None,
    ) -> None:
        self._whom_to_ask = whom_to_ask
        self._snapshot = snapshot
        self._options = options
        self._cache = cache
        self._before = before
        self._made: dict[tuple[object, ...], Made] = {}
        self._needs: dict[tuple[Policy, ...], frozenset[str]] = {}

    def stack(self, gateway: Resource, listener: Listener, backend: Resource | None) -> Stack[Policy]:
        """The policies between a listener and a backend, in their order."""
        return model(self._snapshot).stack(gateway, listener, backend)

    def protection(self, stack: Stack[Policy], backend: Backend, port: int) -> Protection:
        """What stands between a listener's port and a backend."""
        guarded = (tier for tier in stack if tier.policies)
        return Protection(tuple(self._at(tier.name.lower(), tier.policies, backend, port) for tier in guarded))

    def _at(self, level: str, policies: tuple[Policy, ...], backend: Backend, port: int) -> Checkpoint:
        needs = self._needs.get(policies)
        if needs is None:
            needs = self._before._needs.get(policies) if self._before is not None else None
            if needs is None:
                needs = frozenset(need for policy in policies for need in depends_on(policy))
            self._needs[policies] = needs
        key = level, policies, *_needed(needs, backend, port)
        made = self._made.get(key)
        if made is None:
            made = self._before._made.get(key) if self._before is not None else None
            self._made[key] = made = made or self._make(level, policies, backend, port)
        return made.checkpoint

    def _make(self, level: str, policies: tuple[Policy, ...], backend: Backend, port: int) -> Made:
        identities, guards, asked = [], [], []
        # INVARIANT: a target has at most five policies (attach.limits), so there is a slot for each.
        for policy in policies[:SLOTS_PER_LEVEL]:
            asks = self._whom_to_ask(self._snapshot, policy.resource) if policy.asks.all else None
            identity, guard = self._guard(policy, backend, port, asks)
            identities.append(identity)
            guards.append(guard)
            if isinstance(asks, Authorizer):
                asked.append(asks)
        return Made(policies, Checkpoint.of(level, identities, guards), tuple(asked))

    def _guard(
        self, policy: Policy, backend: Backend, port: int, asks: Authorizer | str | None
    ) -> tuple[object, Guard]:
        """What tells a policy from others, and what it compiles to."""
        key = (
            *_needed(frozenset(depends_on(policy)), backend, port),
            # Whether a name with a slash is scoped depends on which backends there are.
            tuple(_scoped(policy)),
            asks if isinstance(asks, str) else None if asks is None else (asks.cluster, asks.is_grpc),
            bool(policy.closed),
            self._options.largest_pattern,
        )
        kept = self._cache.of(policy.resource)
        found = kept.get(key)
        if found is None:
            found = kept[key] = guard(policy, backend, port, asks, self._options.largest_pattern)
        return (policy.resource.group, str(policy.reference), self._cache.tag(policy.resource), key), found

    def done(self) -> None:
        """Let go of the ones before."""
        self._before = None

    @property
    def checkpoints(self) -> dict[str, Checkpoint]:
        """Every checkpoint so far, by name."""
        return {one.checkpoint.name: one.checkpoint for one in self._made.values()}

    @property
    def policies(self) -> list[Resource]:
        """Every policy that stands somewhere."""
        return [policy.resource for one in self._made.values() for policy in one.policies]

    @property
    def authorizers(self) -> dict[str, Authorizer]:
        """Everybody who is asked, by cluster."""
        return {one.cluster: one for made in self._made.values() for one in made.asked}

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """What is wrong with the policies, each once."""
        found = (one for made in self._made.values() for guard in made.checkpoint.guards for one in guard.diagnostics)
        return list({(one.code, one.message, str(one.at)): one for one in found}.values())

    def filters(self) -> Mapping[str, Any]:
        """The configurations of the filters that have the policies of every way so far."""
        return self._cache.filters(self.checkpoints)


def _needed(needs: frozenset[str], backend: Backend, port: int) -> tuple[object, object]:
    """What of a way the policies on it depend on."""
    where = backend if "backend" in needs else backend.path if "path" in needs else None
    return where, port if "port" in needs else None


def _scoped(policy: Policy) -> list[str]:
    return sorted(
        str(one)
        for rule in (*policy.allows.all, *policy.asks.all)
        for clause in rule.clauses
        if (method := as_method(clause)) is not None and method.names is not None
        for one in method.names.scoped
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
