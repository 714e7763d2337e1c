"""Compiles Gateways, HTTPRoutes, backends and AccessPolicies to Envoy's configuration (pure, no I/O).

This module joins what is served (`listeners`) with the policies that protect it (`policy_compiler`). A compilation
returns the configuration and a state. The next compilation starts from that state and remakes only what has changed.
A state is a value: a caller that discards a compilation continues with the state from before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tierwall.attach.target import ACCESS_POLICIES
from tierwall.core.diagnostics import Diagnostic, sorted_diagnostics
from tierwall.engines.envoy.config import clusters, telemetry
from tierwall.engines.envoy.config.checkpoints import Change, PolicyFilters, PolicyTags
from tierwall.engines.envoy.config.external_auth import AuthorizationService
from tierwall.engines.envoy.config.fence import ObjectFence
from tierwall.engines.envoy.config.listeners import ServedGateways, served_gateways
from tierwall.engines.envoy.config.names import NOWHERE
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.policy_compiler import CompiledPolicies, PolicyCompiler
from tierwall.engines.envoy.config.provenance import contributors
from tierwall.engines.envoy.config.routes import RouteConfigurations
from tierwall.engines.envoy.config.usable_snapshot import UsableSnapshot, usable_snapshot
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import follow, inherit


class XdsResources(Struct, frozen=True, eq=False):
    """The configuration of an Envoy: protobuf messages by type and by name, sorted by name.

    A message that has not changed since the previous compilation is the same Python object.
    """

    listeners: Mapping[str, Any] = {}
    routes: Mapping[str, Any] = {}
    clusters: Mapping[str, Any] = {}
    secrets: Mapping[str, Any] = {}
    extension_configs: Mapping[str, Any] = {}
    diagnostics: tuple[Diagnostic, ...] = ()


class CompileState(Struct, frozen=True, eq=False, kw_only=True):
    """State that a compilation hands to the next one; `CompileState()` comes before the first."""

    # The number of the compilation, from 1, and of the last one that every proxy has acknowledged.
    number: int = 0
    acknowledged: int = 0
    options: EnvoyOptions = EnvoyOptions()
    snapshot: Snapshot = Snapshot.of(())
    # The objects that Envoy refuses, with its words, and the snapshot without what cannot be used.
    refused: Mapping[Identity, str] = {}
    usable: UsableSnapshot = UsableSnapshot()
    tags: PolicyTags = PolicyTags()
    served: ServedGateways | None = None
    policies: CompiledPolicies = CompiledPolicies()
    routes: RouteConfigurations = RouteConfigurations()
    filters: PolicyFilters = PolicyFilters()
    resources: XdsResources = XdsResources()

    @property
    def has_noncanonical_names(self) -> bool:
        """Whether some checkpoint names differ from those that a first compilation would give."""
        return bool(self.tags.noncanonical)

    def contributors(self, field: str, name: str) -> frozenset[Identity]:
        """Return the objects that a message is made of; `field` is that of `XdsResources`."""
        return contributors(self, field, name)

    @property
    def unaccepted(self) -> frozenset[str]:
        """Checkpoints that only proxies with earlier routes need, and that not every proxy has ever accepted."""
        return self.filters.unaccepted(self.acknowledged)

    def without_unaccepted(self) -> CompileState:
        """Return a state whose next compilation drops those, because a filter with them may be refused."""
        return replace(self, filters=self.filters.without(self.unaccepted))

    def acknowledge(self, number: int) -> CompileState:
        """Return the state after every proxy has acknowledged a compilation, and with it all earlier ones."""
        return replace(self, acknowledged=max(self.acknowledged, number))


def compile(
    snapshot: Snapshot,
    options: EnvoyOptions,
    state: CompileState | None = None,
    refused: Mapping[Identity, str] | None = None,
) -> tuple[XdsResources, CompileState]:
    """Compile the Gateways of a snapshot; return the configuration and the state for the next compilation.

    `refused` are objects that Envoy refuses, with its words: they are compiled closed. A mistake in one object never
    keeps others out (docs/semantics.md#running).
    """
    state, refused = CompileState() if state is None else state, refused or {}
    resources, after = _compile(snapshot, options, state, refused, exactly=False)
    if resources.diagnostics and after.snapshot is not snapshot:
        return _compile(snapshot, options, state, refused, exactly=True)
    return resources, after


def canonicalized(state: CompileState) -> tuple[XdsResources, CompileState]:
    """Return the same configuration with the names that a first compilation gives.

    After that, a restarted control plane gives the names that proxies already have.
    """
    policies = {key: policy for key, (policy, _) in state.policies.by_policy.items()}
    tags = state.tags.canonical(policies, state.number + 1)
    return _make(replace(state, tags=tags, policies=state.policies.without_checkpoints), state.served)


def _compile(
    snapshot: Snapshot, options: EnvoyOptions, state: CompileState, refused: Mapping[Identity, str], exactly: bool
) -> tuple[XdsResources, CompileState]:
    """Compile a snapshot, starting from a state.

    An object that was read again without a change of content is replaced by the earlier object, so that everything
    computed from it stays valid. Only its position in files may then be out of date. `exactly` turns this off.
    """
    changes: list[Change] = []
    only_policies = False
    if state.number:
        snapshot, changes, only_policies = _follow(state.snapshot, snapshot, exactly)
        if refused or state.refused:
            also = [
                resource for resource in _refusal_changes(snapshot, state.refused, refused) if not _is_policy(resource)
            ]
            only_policies = only_policies and not also
            changes += [(resource, resource) for resource in also]
    tags = state.tags.after(changes, state.number + 1, state.acknowledged)
    known = replace(state, snapshot=snapshot, options=options, tags=tags, refused=refused)
    # Streams are not judged by policies: a policy about one closes it.
    has_streams = state.served is not None and state.served.streams
    if not only_policies or options is not state.options or has_streams:
        known = replace(
            known,
            usable=usable_snapshot(snapshot, refused),
            served=None,
            policies=known.policies.without_checkpoints,
            routes=RouteConfigurations(),
        )
    return _make(known, state.served)


def _refusal_changes(
    snapshot: Snapshot, before: Mapping[Identity, str], after: Mapping[Identity, str]
) -> Iterator[Resource]:
    """Yield the objects that Envoy newly refuses, or no longer, or with other words."""
    for key in before.keys() | after.keys():
        resource = snapshot.get(*key)
        if resource is not None and before.get(key) != after.get(key):
            yield resource


def _is_policy(resource: Resource) -> bool:
    return (resource.group, resource.kind) in ACCESS_POLICIES


def _follow(before: Snapshot, snapshot: Snapshot, exactly: bool) -> tuple[Snapshot, list[Change], bool]:
    """Return the snapshot to compile, the objects whose content changed, and whether only policies changed."""
    replaced = list(snapshot.changes(before))
    changes = [(old, new) for old, new in replaced if old is None or new is None or not new.has_same_content(old)]
    if len(changes) < len(replaced) and not exactly:
        dropped = [old for old, new in changes if old is not None and new is None]
        snapshot = before.with_changes([new for _, new in changes if new is not None], dropped)
        replaced = changes
    removed = [old for old, _ in replaced if old is not None]
    added = [new for _, new in replaced if new is not None]
    only_policies = all(map(_is_policy, (*removed, *added)))
    if not only_policies:
        inherit(before, snapshot)
    elif before is not snapshot:
        follow(before, snapshot, removed, added)
    return snapshot, changes, only_policies


def _make(known: CompileState, in_force: ServedGateways | None) -> tuple[XdsResources, CompileState]:
    """Compile the snapshot of a state, and reuse the rest of the state where it is still valid."""
    options, number, before, refused = known.options, known.number + 1, known.resources, known.refused
    served = known.served
    if served is None:
        usable, closed = known.usable.snapshot, known.usable.closed
        served = served_gateways(usable, options, in_force, known.snapshot, closed, refused)
    compiler = PolicyCompiler(
        known.snapshot,
        options,
        known.tags.by_policy,
        known.policies,
        usable=known.usable.snapshot,
        refused=refused,
    )
    routes = known.routes.after(served.plans, compiler, options)
    filters = known.filters.after(
        compiler.checkpoints, number, known.acknowledged, refused, counts=options.collector is not None
    )
    # Envoy asks only for the filters of its listeners, and those without HTTP do not have any.
    configs = {**filters.messages, **served.settings_configs} if served.plans else {}
    fence = ObjectFence()
    if known.served is not None and not options.static:
        listeners = before.listeners
    else:
        listeners = served.listeners(options, configs, routes.configurations, fence)
    resources = XdsResources(
        listeners=_reuse(before.listeners, listeners),
        routes={} if options.static else _reuse(before.routes, routes.configurations),
        clusters=_reuse(before.clusters, {**served.clusters, **_other_clusters(options, compiler, fence)}),
        secrets=_reuse(before.secrets, served.secrets),
        extension_configs={} if options.static else _reuse(before.extension_configs, configs),
    )
    problems = (*known.usable.diagnostics, *served.diagnostics, *compiler.diagnostics, *routes.diagnostics)
    resources = replace(resources, diagnostics=sorted_diagnostics((*problems, *fence.diagnostics)))
    policies = compiler.compiled
    after = replace(
        known,
        number=number,
        tags=known.tags.keeping(compiler.tags, policies.by_policy),
        served=served,
        policies=policies,
        routes=routes,
        filters=filters,
        resources=resources,
    )
    return resources, after


def _reuse(before: Mapping[str, Any], after: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the messages sorted by name, with the earlier object for each equal message: it compares faster later."""
    out = {}
    for name in sorted(after):
        old, new = before.get(name), after[name]
        out[name] = old if old is not None and (old is new or old == new) else new
    return out


def _other_clusters(options: EnvoyOptions, compiler: PolicyCompiler, fence: ObjectFence) -> dict[str, Any]:
    """Return all clusters except those of backends. Without the cluster of an authorizer, its requests are denied."""
    out: dict[str, Any] = {}
    for name, service in compiler.authorizers.items():
        consequence = "requests that it is asked about are denied"
        made = fence.guard(service.service, consequence, partial(_authorizer_cluster, name, service, options))
        if made is not None:
            out[name] = made
    out[NOWHERE] = clusters.empty_cluster(NOWHERE)
    if options.collector is not None:
        out[telemetry.COLLECTOR] = telemetry.collector_cluster(options.collector)
    return out | {cluster.name: cluster for cluster in options.clusters}


def _authorizer_cluster(name: str, service: AuthorizationService, options: EnvoyOptions) -> Any:
    return clusters.authorizer_cluster(
        name, service.service, service.port, service.is_grpc, options, service.allowed_headers
    )
