"""From objects to Envoy's configuration: Gateways, HTTPRoutes, backends and AccessPolicies (pure, no I/O).

What is served (`serving`) and the policies on the ways (`guards`) are put together here. Where only policies differ
from the last compilation with the same cache, only what they touch is made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from tierwall.core.diagnostics import Diagnostic, in_order
from tierwall.engines.envoy import clusters
from tierwall.engines.envoy.cache import Cache
from tierwall.engines.envoy.guards import Guards
from tierwall.engines.envoy.options import Options
from tierwall.engines.envoy.routes import NOWHERE, Routes
from tierwall.engines.envoy.serving import Serving, serving
from tierwall.resources.snapshot import Snapshot

__all__ = ["Cache", "Options", "Resources", "compile", "straightened"]


class Resources(Struct, frozen=True, eq=False):
    """What an Envoy is given, by type and then by name, as protobuf messages; names in order.

    A message that has not changed since the last compilation with the same cache is the same object.
    """

    listeners: Mapping[str, Any]
    routes: Mapping[str, Any]
    clusters: Mapping[str, Any]
    endpoints: Mapping[str, Any]
    secrets: Mapping[str, Any]
    extension_configs: Mapping[str, Any]
    diagnostics: tuple[Diagnostic, ...] = ()


class _Last(NamedTuple):
    """A compilation: what it was told, found and made."""

    options: Options
    serving: Serving
    guards: Guards
    routes: Routes
    resources: Resources


def straightened(snapshot: Snapshot, options: Options, cache: Cache) -> Resources:
    """The configuration of the last snapshot again, with the names that a compilation without a cache gives."""
    return _compile(snapshot, options, cache, exactly=False, straight=True)


def compile(snapshot: Snapshot, options: Options, cache: Cache | None = None) -> Resources:
    """The configuration of an Envoy that serves the Gateways of a snapshot."""
    cache = Cache() if cache is None else cache
    resources = _compile(snapshot, options, cache, exactly=False)
    if resources.diagnostics and not cache.is_exact:
        cache.undo()
        resources = _compile(snapshot, options, cache, exactly=True)
    return resources


def _compile(snapshot: Snapshot, options: Options, cache: Cache, exactly: bool, straight: bool = False) -> Resources:
    snapshot, only_policies = cache.begin(snapshot, exactly)
    if straight:
        cache.straighten()
    last: _Last | None = cache.last
    if last is not None and not (only_policies and last.options is options):
        last = None
    cache.last = None
    served = last.serving if last is not None else serving(snapshot, options)
    guards = Guards(snapshot, options, cache, before=last.guards if last is not None and not straight else None)
    routes = Routes(options, guards, last.routes if last is not None else None)
    configurations = {plan.name: routes.configuration(plan) for plan in served.plans}
    policies = guards.filters()
    if last is not None and not options.static:
        listeners: Mapping[str, Any] = last.resources.listeners
    else:
        listeners = served.listeners(options, policies, configurations)
    found: dict[str, Mapping[str, Any]] = {
        "listeners": listeners,
        "routes": {} if options.static else configurations,
        "clusters": {**served.clusters, **_others(options, guards)},
        "secrets": served.secrets,
    }
    kept = {
        kind: {name: cache.same(kind, name, those[name]) for name in sorted(those)} for kind, those in found.items()
    }
    resources = Resources(
        **kept,
        endpoints={},
        extension_configs={} if options.static else policies,
        diagnostics=in_order((*served.diagnostics, *guards.diagnostics)),
    )
    cache.forget(guards.policies, {(kind, name) for kind, those in kept.items() for name in those})
    routes.done()
    guards.done()
    cache.last = _Last(options, served, guards, routes, resources)
    return resources


def _others(options: Options, guards: Guards) -> dict[str, Any]:
    """The clusters besides those of backends."""
    out = {
        name: clusters.authorizer(name, one.service, one.port, one.is_grpc, options, one.may_get)
        for name, one in guards.authorizers.items()
    }
    out[NOWHERE] = clusters.nowhere(NOWHERE)
    return out | {one.name: one for one in options.clusters}
