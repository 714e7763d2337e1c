"""From objects to Envoy's configuration: Gateways, HTTPRoutes, backends and AccessPolicies (pure, no I/O).

What is served (`listeners`) and the policies on the ways (`guards`) are put together here. A compilation gives, besides
the configuration, a state; from it, the next one makes anew only what has changed. A state is a value: who does not put
a compilation in force goes on with the state from before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tierwall.attach.target import ACCESS_POLICIES
from tierwall.core.diagnostics import Diagnostic, sorted_diagnostics
from tierwall.engines.envoy.config import clusters
from tierwall.engines.envoy.config.checkpoints import Change, PolicyFilters, PolicyTags
from tierwall.engines.envoy.config.guards import CompiledPolicies, PolicyCompiler
from tierwall.engines.envoy.config.listeners import ServedGateways, served_gateways
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.routes import NOWHERE, RouteConfigurations
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import follow, inherit


class XdsResources(Struct, frozen=True, eq=False):
    """What an Envoy is given, by type and then by name, as protobuf messages; names in order.

    A message that has not changed since the compilation that this one follows is the same object.
    """

    listeners: Mapping[str, Any] = {}
    routes: Mapping[str, Any] = {}
    clusters: Mapping[str, Any] = {}
    secrets: Mapping[str, Any] = {}
    extension_configs: Mapping[str, Any] = {}
    diagnostics: tuple[Diagnostic, ...] = ()


class CompileState(Struct, frozen=True, eq=False, kw_only=True):
    """What a compilation leaves to the next one; `State()` is what stands before the first."""

    # The compilation, counted from 1, and the last one that every proxy has taken.
    number: int = 0
    acknowledged: int = 0
    options: EnvoyOptions = EnvoyOptions()
    snapshot: Snapshot = Snapshot.of(())
    tags: PolicyTags = PolicyTags()
    serving: ServedGateways | None = None
    guards: CompiledPolicies = CompiledPolicies()
    routes: RouteConfigurations = RouteConfigurations()
    filters: PolicyFilters = PolicyFilters()
    resources: XdsResources = XdsResources()

    @property
    def has_noncanonical_names(self) -> bool:
        """Whether names of checkpoints are others than a compilation that follows none would give."""
        return bool(self.tags.noncanonical)

    def acknowledge(self, number: int) -> CompileState:
        """The state now that every proxy has taken a compilation, and with it all before it."""
        return replace(self, acknowledged=max(self.acknowledged, number))


def compile(
    snapshot: Snapshot, options: EnvoyOptions, state: CompileState | None = None
) -> tuple[XdsResources, CompileState]:
    """The configuration of an Envoy that serves the Gateways of a snapshot, and the state for the next compilation."""
    state = CompileState() if state is None else state
    resources, after = _compile(snapshot, options, state, exactly=False)
    if resources.diagnostics and after.snapshot is not snapshot:
        return _compile(snapshot, options, state, exactly=True)
    return resources, after


def canonicalized(state: CompileState) -> tuple[XdsResources, CompileState]:
    """The same configuration with the names that a compilation that follows none gives.

    A control plane that starts anew then gives the names that proxies have.
    """
    policies = {key: policy for key, (policy, _) in state.guards.compiled.items()}
    tags = state.tags.canonical(policies, state.number + 1)
    return _make(replace(state, tags=tags, guards=state.guards.without_checkpoints))


def _compile(
    snapshot: Snapshot, options: EnvoyOptions, state: CompileState, exactly: bool
) -> tuple[XdsResources, CompileState]:
    """Compile a snapshot that follows on the one of a state.

    Unless exactly this one is to be compiled, objects that were read anew and say what they said are those from before,
    so that what is known of them is known still; only where they stand in files may be wrong.
    """
    texts: list[Change] = []
    is_of_policies = False
    if state.number:
        snapshot, texts, is_of_policies = _follow(state.snapshot, snapshot, exactly)
    tags = state.tags.after(texts, state.number + 1, state.acknowledged)
    known = replace(state, snapshot=snapshot, options=options, tags=tags)
    if not is_of_policies or options is not state.options:
        known = replace(known, serving=None, guards=known.guards.without_checkpoints, routes=RouteConfigurations())
    return _make(known)


def _follow(before: Snapshot, snapshot: Snapshot, exactly: bool) -> tuple[Snapshot, list[Change], bool]:
    """From one snapshot to the next: the one to compile, which texts changed, and whether policies only did."""
    changes = list(snapshot.changes(before))
    texts = [(old, new) for old, new in changes if old is None or new is None or not new.has_same_content(old)]
    if len(texts) < len(changes) and not exactly:
        dropped = [old for old, new in texts if old is not None and new is None]
        snapshot = before.with_changes([new for _, new in texts if new is not None], dropped)
        changes = texts
    gone = [old for old, _ in changes if old is not None]
    come = [new for _, new in changes if new is not None]
    is_of_policies = all((resource.group, resource.kind) in ACCESS_POLICIES for resource in (*gone, *come))
    if not is_of_policies:
        inherit(before, snapshot)
    elif before is not snapshot:
        follow(before, snapshot, gone, come)
    return snapshot, texts, is_of_policies


def _make(known: CompileState) -> tuple[XdsResources, CompileState]:
    """The configuration of the snapshot of a state; whatever else the state has is taken over where it still holds."""
    options, number, before = known.options, known.number + 1, known.resources
    served = known.serving if known.serving is not None else served_gateways(known.snapshot, options)
    guards = PolicyCompiler(known.snapshot, options, known.tags.by_policy, known.guards)
    routes = known.routes.after(served.plans, guards, options)
    filters = known.filters.after(guards.checkpoints, number, known.acknowledged)
    if known.serving is not None and not options.static:
        listeners = before.listeners
    else:
        listeners = served.listeners(options, filters.messages, routes.configurations)
    resources = XdsResources(
        listeners=_same(before.listeners, listeners),
        routes={} if options.static else _same(before.routes, routes.configurations),
        clusters=_same(before.clusters, {**served.clusters, **_others(options, guards)}),
        secrets=_same(before.secrets, served.secrets),
        extension_configs={} if options.static else filters.messages,
        diagnostics=sorted_diagnostics((*served.diagnostics, *guards.diagnostics)),
    )
    kept = guards.kept
    after = replace(
        known,
        number=number,
        tags=known.tags.keeping(guards.tags, kept.compiled),
        serving=served,
        guards=kept,
        routes=routes,
        filters=filters,
        resources=resources,
    )
    return resources, after


def _same(before: Mapping[str, Any], after: Mapping[str, Any]) -> Mapping[str, Any]:
    """The messages in the order of names, the ones from before where they are equal: those are compared faster."""
    out = {}
    for name in sorted(after):
        old, new = before.get(name), after[name]
        out[name] = old if old is not None and (old is new or old == new) else new
    return out


def _others(options: EnvoyOptions, guards: PolicyCompiler) -> dict[str, Any]:
    """The clusters besides those of backends."""
    out = {
        name: clusters.authorizer_cluster(name, asked.service, asked.port, asked.is_grpc, options, asked.may_get)
        for name, asked in guards.authorizers.items()
    }
    out[NOWHERE] = clusters.empty_cluster(NOWHERE)
    return out | {cluster.name: cluster for cluster in options.clusters}
