"""The policies on a way as settings of a route: which checkpoints it passes, and how its requests are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from tierwall.attach.listener import Listener
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.stack import Stack
from tierwall.engines.envoy.config import mcp
from tierwall.engines.envoy.config.checkpoints import Checkpoint, Key, digest
from tierwall.engines.envoy.config.external_auth import AuthorizationService, authorization_service
from tierwall.engines.envoy.config.names import CHECKPOINT, FACTS, SLOTS_PER_LEVEL
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.rbac import CompiledPolicy, compile_policy, dependencies
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import model
from tierwall.tool.request import Backend
from tierwall.tool.rules import AccessPolicy

WhomToAsk = Callable[[Snapshot, Resource], AuthorizationService | str]


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
        return frozenset(path for guard in self._guards for path in guard.arguments)

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """What is wrong with the policies."""
        return tuple(diagnostic for guard in self._guards for diagnostic in guard.diagnostics)

    @property
    def _guards(self) -> Iterator[CompiledPolicy]:
        return (guard for checkpoint in self.checkpoints for guard in checkpoint.guards)

    def settings(self, plain: bool) -> dict[str, Any]:
        """The settings of a route, by filter."""
        if not self.checkpoints:
            return {}
        says = {CHECKPOINT[checkpoint.level]: checkpoint.says(plain) for checkpoint in self.checkpoints}
        # INVARIANT: a filter of policies is on only where the facts are set, too, so that no client says where it is.
        out = {FACTS: mcp.facts(tuple(says.items()))}
        for checkpoint in self.checkpoints:
            out |= checkpoint.settings()
        return out


NO_PROTECTION = Protection()


class MadeCheckpoint(NamedTuple):
    """A checkpoint with what it was made of: its policies, and whom they ask."""

    policies: tuple[Key, ...]
    checkpoint: Checkpoint
    asked: tuple[AuthorizationService, ...]


class CompiledPolicies(Struct, frozen=True, eq=False):
    """What a compilation keeps of policies: the checkpoints by what they were made of, and what each compiles to."""

    made: Mapping[tuple[object, ...], MadeCheckpoint] = {}
    needs: Mapping[tuple[AccessPolicy, ...], frozenset[str]] = {}
    # What a policy compiles to, by what of a way it depends on, as long as the policy says the same.
    compiled: Mapping[Key, tuple[Resource, Mapping[object, CompiledPolicy]]] = {}

    @property
    def without_checkpoints(self) -> CompiledPolicies:
        """For a compilation whose checkpoints must be made anew."""
        return CompiledPolicies(compiled=self.compiled)


class PolicyCompiler:
    """The policies of one compilation. It takes over what is the same from what another one kept."""

    def __init__(
        self,
        snapshot: Snapshot,
        options: EnvoyOptions,
        tags: Mapping[Key, str] | None = None,
        before: CompiledPolicies | None = None,
        whom_to_ask: WhomToAsk = authorization_service,
    ) -> None:
        self._snapshot = snapshot
        self._options = options
        self._whom_to_ask = whom_to_ask
        self._before = before if before is not None else CompiledPolicies()
        self.tags = dict(tags or {})
        self._made: dict[tuple[object, ...], MadeCheckpoint] = {}
        self._needs: dict[tuple[AccessPolicy, ...], frozenset[str]] = {}
        self._compiled: dict[Key, tuple[Resource, dict[object, CompiledPolicy]]] = {}

    def stack(self, gateway: Resource, listener: Listener, backend: Resource | None) -> Stack[AccessPolicy]:
        """The policies between a listener and a backend, in their order."""
        return model(self._snapshot).stack(gateway, listener, backend)

    def protection(self, stack: Stack[AccessPolicy], backend: Backend, port: int) -> Protection:
        """What stands between a listener's port and a backend."""
        guarded = (tier for tier in stack if tier.policies)
        return Protection(tuple(self._at(tier.name.lower(), tier.policies, backend, port) for tier in guarded))

    def _at(self, level: str, policies: tuple[AccessPolicy, ...], backend: Backend, port: int) -> Checkpoint:
        needs = self._needs.get(policies)
        if needs is None:
            needs = self._before.needs.get(policies)
            if needs is None:
                needs = frozenset(need for policy in policies for need in dependencies(policy))
            self._needs[policies] = needs
        key = level, policies, *_needed(needs, backend, port)
        made = self._made.get(key)
        if made is None:
            made = self._before.made.get(key) or self._make(level, policies, backend, port)
            self._made[key] = made
        return made.checkpoint

    def _make(self, level: str, policies: tuple[AccessPolicy, ...], backend: Backend, port: int) -> MadeCheckpoint:
        identities, guards, asked = [], [], []
        # INVARIANT: a target has at most five policies (attach.limits), so there is a slot for each.
        for policy in policies[:SLOTS_PER_LEVEL]:
            asks = self._whom_to_ask(self._snapshot, policy.resource) if policy.asks.all else None
            identity, guard = self._guard(policy, backend, port, asks)
            identities.append(identity)
            guards.append(guard)
            if isinstance(asks, AuthorizationService):
                asked.append(asks)
        keys = tuple(policy.resource.identity for policy in policies)
        return MadeCheckpoint(keys, Checkpoint.of(level, identities, guards), tuple(asked))

    def _guard(
        self, policy: AccessPolicy, backend: Backend, port: int, asks: AuthorizationService | str | None
    ) -> tuple[object, CompiledPolicy]:
        """What tells a policy from others, and what it compiles to."""
        key = (
            *_needed(frozenset(dependencies(policy)), backend, port),
            # Whether a name with a slash is scoped depends on which backends there are.
            tuple(_scoped(policy)),
            asks if isinstance(asks, str) else None if asks is None else (asks.cluster, asks.is_grpc),
            bool(policy.closed),
            self._options.largest_pattern,
        )
        guards = self._guards(policy.resource)
        if key not in guards:
            guards[key] = compile_policy(policy, backend, port, asks, self._options.largest_pattern)
        return (policy.resource.group, str(policy.reference), self._tag(policy.resource), key), guards[key]

    def _guards(self, policy: Resource) -> dict[object, CompiledPolicy]:
        """What a policy compiles to so far: nothing, if it has changed, or if notes say where it stood before."""
        key = policy.identity
        if key not in self._compiled:
            kept, guards = self._before.compiled.get(key, (policy, {}))
            if kept is not policy and (
                not policy.has_same_content(kept) or any(guard.diagnostics for guard in guards.values())
            ):
                kept, guards = policy, {}
            self._compiled[key] = kept, dict(guards)
        return self._compiled[key][1]

    def _tag(self, policy: Resource) -> str:
        """What stands for the text of a policy: first its digest, so that a control plane that starts anew finds the
        names again of what has not changed since.
        """
        key = policy.identity
        if key not in self.tags:
            self.tags[key] = digest(policy)
        return self.tags[key]

    @property
    def kept(self) -> CompiledPolicies:
        """What the next compilation can take over."""
        known = {**self._before.compiled, **self._compiled}
        in_use = {key for made in self._made.values() for key in made.policies}
        compiled = {key: known[key] for key in in_use & known.keys()}
        return CompiledPolicies(self._made, self._needs, compiled)

    @property
    def checkpoints(self) -> dict[str, Checkpoint]:
        """Every checkpoint so far, by name."""
        return {made.checkpoint.name: made.checkpoint for made in self._made.values()}

    @property
    def authorizers(self) -> dict[str, AuthorizationService]:
        """Everybody who is asked, by cluster."""
        return {asked.cluster: asked for made in self._made.values() for asked in made.asked}

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """What is wrong with the policies, each once."""
        guards = (guard for made in self._made.values() for guard in made.checkpoint.guards)
        diagnostics = (diagnostic for guard in guards for diagnostic in guard.diagnostics)
        return list({(each.code, each.message, str(each.at)): each for each in diagnostics}.values())


def _needed(needs: frozenset[str], backend: Backend, port: int) -> tuple[object, object]:
    """What of a way the policies on it depend on."""
    where = backend if "backend" in needs else backend.path if "path" in needs else None
    return where, port if "port" in needs else None


def _scoped(policy: AccessPolicy) -> list[str]:
    return sorted(
        str(tool)
        for rule in (*policy.allows.all, *policy.asks.all)
        for method in rule.methods
        if method.names is not None
        for tool in method.names.scoped
    )
