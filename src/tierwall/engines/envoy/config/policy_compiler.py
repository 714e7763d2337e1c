"""Compiles the policies on each way from a listener to a backend into checkpoints, and those into route settings.

A compiler reuses what the previous compilation made wherever the policies and their surroundings are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from tierwall.attach.listener import Listener
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.stack import Stack
from tierwall.engines.envoy.config import mcp
from tierwall.engines.envoy.config.checkpoints import Checkpoint, digest
from tierwall.engines.envoy.config.external_auth import AuthorizationService, authorization_service
from tierwall.engines.envoy.config.fence import failure
from tierwall.engines.envoy.config.names import CHECKPOINT, FACTS, SLOTS_PER_LEVEL
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.rbac import CompiledPolicy, closed_policy, compile_policy, dependencies
from tierwall.engines.envoy.config.usable_snapshot import refusal
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import model
from tierwall.tool.request import Backend
from tierwall.tool.rules import AccessPolicy

# Finds the authorization service of a policy, or says why it cannot be asked.
FindAuthorizer = Callable[[Snapshot, Resource], AuthorizationService | str]
CLOSED = "every request to its targets is denied"


class Protection(Struct, frozen=True):
    """The policies on a way: one checkpoint for each level that has policies."""

    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Whether any policy applies."""
        return bool(self.checkpoints)

    @property
    def arguments(self) -> frozenset[tuple[str, ...]]:
        """The tool arguments that rules read, as paths."""
        return frozenset(path for policy in self._policies for path in policy.arguments)

    @property
    def headers(self) -> frozenset[str]:
        """The headers that rules look at, which a request may have only once."""
        return frozenset(name for policy in self._policies for name in policy.headers)

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The problems of the policies."""
        return tuple(diagnostic for policy in self._policies for diagnostic in policy.diagnostics)

    @property
    def _policies(self) -> Iterator[CompiledPolicy]:
        return (policy for checkpoint in self.checkpoints for policy in checkpoint.policies)

    def settings(self, plain: bool, restored: tuple[tuple[str, str], ...] = ()) -> dict[str, Any]:
        """Return the settings of a route, by filter name; `restored` are headers that it sets, too."""
        if not self.checkpoints:
            return {}
        headers = {CHECKPOINT[checkpoint.level]: checkpoint.header(plain) for checkpoint in self.checkpoints}
        # INVARIANT: a policy filter is only on where the facts filter is on. Otherwise a client could send the headers
        # that choose the checkpoint.
        reads_path = plain or any(policy.reads_path for policy in self._policies)
        out = {FACTS: mcp.facts((*headers.items(), *restored), reads_path)}
        for checkpoint in self.checkpoints:
            out |= checkpoint.settings()
        return out


NO_PROTECTION = Protection()


class CheckpointEntry(NamedTuple):
    """A checkpoint with the policies it was made from and the authorization services that they ask."""

    policies: tuple[Identity, ...]
    checkpoint: Checkpoint
    services: tuple[AuthorizationService, ...]


class CompiledPolicies(Struct, frozen=True, eq=False):
    """Compiled policies that the next compilation can reuse."""

    # By level, policies and what these depend on.
    checkpoints: Mapping[tuple[object, ...], CheckpointEntry] = {}
    # What each list of policies depends on: see `rbac.dependencies`.
    dependencies: Mapping[tuple[AccessPolicy, ...], frozenset[str]] = {}
    # Each policy with its compiled forms, by what they depend on. Valid while the policy's content stays the same.
    by_policy: Mapping[Identity, tuple[Resource, Mapping[object, CompiledPolicy]]] = {}

    @property
    def without_checkpoints(self) -> CompiledPolicies:
        """The same policies, for a compilation that must remake its checkpoints."""
        return CompiledPolicies(by_policy=self.by_policy)


class PolicyCompiler:
    """Compiles the policies of one snapshot, and reuses what is unchanged from an earlier compilation."""

    def __init__(
        self,
        snapshot: Snapshot,
        options: EnvoyOptions,
        tags: Mapping[Identity, str] | None = None,
        before: CompiledPolicies | None = None,
        find_authorizer: FindAuthorizer = authorization_service,
        usable: Snapshot | None = None,
        refused: Mapping[Identity, str] | None = None,
    ) -> None:
        """`usable` has the objects that authorizers may be, and `refused` the policies that Envoy refuses."""
        self._snapshot = snapshot
        self._usable = usable if usable is not None else snapshot
        self._refused = refused or {}
        self._options = options
        self._find_authorizer = find_authorizer
        self._before = before if before is not None else CompiledPolicies()
        self.tags = dict(tags or {})
        self._entries: dict[tuple[object, ...], CheckpointEntry] = {}
        self._dependencies: dict[tuple[AccessPolicy, ...], frozenset[str]] = {}
        self._by_policy: dict[Identity, tuple[Resource, dict[object, CompiledPolicy]]] = {}

    def stack(self, gateway: Resource, listener: Listener, backend: Resource | None) -> Stack[AccessPolicy]:
        """Return the policies between a listener and a backend, in their order."""
        return model(self._snapshot).stack(gateway, listener, backend)

    def protection(self, stack: Stack[AccessPolicy], backend: Backend, port: int) -> Protection:
        """Compile the policies between a listener's port and a backend."""
        tiers = (tier for tier in stack if tier.policies)
        return Protection(tuple(self._checkpoint(tier.name.lower(), tier.policies, backend, port) for tier in tiers))

    def _checkpoint(self, level: str, policies: tuple[AccessPolicy, ...], backend: Backend, port: int) -> Checkpoint:
        needs = self._dependencies.get(policies)
        if needs is None:
            needs = self._before.dependencies.get(policies)
            if needs is None:
                needs = frozenset(need for policy in policies for need in _dependencies(policy))
            self._dependencies[policies] = needs
        key: tuple[object, ...] = level, policies, *_needed(needs, backend, port)
        if self._refused:
            key = *key, *(self._refused.get(policy.resource.identity) for policy in policies)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._before.checkpoints.get(key) or self._make(level, policies, backend, port)
            self._entries[key] = entry
        return entry.checkpoint

    def _make(self, level: str, policies: tuple[AccessPolicy, ...], backend: Backend, port: int) -> CheckpointEntry:
        identities, compiled, services = [], [], []
        # INVARIANT: a target has at most five policies (attach.limits), so each has a slot.
        for policy in policies[:SLOTS_PER_LEVEL]:
            identity, compiled_policy, service = self._guarded(policy, backend, port)
            identities.append(identity)
            compiled.append(compiled_policy)
            if service is not None:
                services.append(service)
        keys = tuple(policy.resource.identity for policy in policies)
        return CheckpointEntry(keys, Checkpoint.of(level, identities, compiled), tuple(services))

    def _guarded(
        self, policy: AccessPolicy, backend: Backend, port: int
    ) -> tuple[object, CompiledPolicy, AuthorizationService | None]:
        """Return the identity of a compiled policy, the compiled policy and the service that it asks, if any.

        A policy that cannot be compiled, or that Envoy refuses, is closed.
        """
        resource = policy.resource
        try:
            asks = self._find_authorizer(self._usable, resource) if policy.asks.all else None
            identity, compiled = self._compile(policy, backend, port, asks)
        except Exception as error:
            problem = failure(resource, CLOSED, error)
            return ("failed", resource.identity, problem.message), self._closed(policy, problem), None
        words = self._refused.get(resource.identity)
        if words is not None:
            # Closed under the same name, where routes hold nothing else of it: then only its filter is replaced. Others
            # may go from closed to open at the same time: each request meets a policy as it is written, or closed.
            return identity, self._closed(policy, refusal(resource, words)), None
        return identity, compiled, asks if isinstance(asks, AuthorizationService) else None

    def _closed(self, policy: AccessPolicy, problem: Diagnostic) -> CompiledPolicy:
        """Return a policy that denies everything for this reason; the one of the previous compilation if it can be."""
        forms = self._forms(policy.resource)
        return forms.setdefault(problem.message, closed_policy(policy, (problem,)))

    def _compile(
        self, policy: AccessPolicy, backend: Backend, port: int, asks: AuthorizationService | str | None
    ) -> tuple[object, CompiledPolicy]:
        """Return the identity of a compiled policy, and the compiled policy."""
        key = (
            *_needed(frozenset(dependencies(policy)), backend, port),
            # Whether a name with a slash is scoped depends on which backends exist.
            tuple(_scoped(policy)),
            asks if isinstance(asks, str) else None if asks is None else (asks.cluster, asks.is_grpc),
            bool(policy.closed),
            self._options.max_program_size,
        )
        forms = self._forms(policy.resource)
        if key not in forms:
            forms[key] = compile_policy(policy, backend, port, asks, self._options.max_program_size)
        return (policy.resource.group, str(policy.reference), self._tag(policy.resource), key), forms[key]

    def _forms(self, policy: Resource) -> dict[object, CompiledPolicy]:
        """Return the compiled forms of a policy so far.

        Earlier forms do not count if the policy has changed. If it was only read again, they do not count either if
        they have diagnostics, because those point to its old position.
        """
        key = policy.identity
        if key not in self._by_policy:
            kept, forms = self._before.by_policy.get(key, (policy, {}))
            if kept is not policy and (
                not policy.has_same_content(kept) or any(form.diagnostics for form in forms.values())
            ):
                kept, forms = policy, {}
            self._by_policy[key] = kept, dict(forms)
        return self._by_policy[key][1]

    def _tag(self, policy: Resource) -> str:
        """Return the tag that stands for the content of a policy.

        The first tag is the digest of the content, so that a restarted control plane gives the same names to policies
        that have not changed since.
        """
        key = policy.identity
        if key not in self.tags:
            self.tags[key] = digest(policy)
        return self.tags[key]

    @property
    def compiled(self) -> CompiledPolicies:
        """Everything that the next compilation can reuse."""
        known = {**self._before.by_policy, **self._by_policy}
        in_use = {key for entry in self._entries.values() for key in entry.policies}
        by_policy = {key: known[key] for key in in_use & known.keys()}
        return CompiledPolicies(self._entries, self._dependencies, by_policy)

    @property
    def checkpoints(self) -> dict[str, Checkpoint]:
        """All checkpoints so far, by name."""
        return {entry.checkpoint.name: entry.checkpoint for entry in self._entries.values()}

    @property
    def authorizers(self) -> dict[str, AuthorizationService]:
        """All authorization services that policies ask, by cluster name."""
        return {service.cluster: service for entry in self._entries.values() for service in entry.services}

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """The problems of the policies, without duplicates."""
        policies = (policy for entry in self._entries.values() for policy in entry.checkpoint.policies)
        diagnostics = (diagnostic for policy in policies for diagnostic in policy.diagnostics)
        return list(dict.fromkeys(diagnostics))


def _dependencies(policy: AccessPolicy) -> Iterator[str]:
    """Yield what the compiled form of a policy depends on; a closed form depends on nothing."""
    try:
        yield from dependencies(policy)
    except Exception:
        return


def _needed(needs: frozenset[str], backend: Backend, port: int) -> tuple[object, object]:
    """Return the backend or its path, and the port, where policies depend on them."""
    where = backend if "backend" in needs else backend.path if "path" in needs else None
    return where, port if "port" in needs else None


def _scoped(policy: AccessPolicy) -> list[str]:
    """Return the scoped tool names of a policy, sorted."""
    return sorted(
        str(tool)
        for rule in (*policy.allows.all, *policy.asks.all)
        for method in rule.methods
        if method.names is not None
        for tool in method.names.scoped
    )
