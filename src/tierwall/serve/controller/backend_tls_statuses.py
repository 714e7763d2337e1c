"""The statuses of BackendTLSPolicies: one entry for each Gateway of ours that leads to a Service which they name.

Gateway API, `PolicyStatus` and the conditions of BackendTLSPolicy. A policy that cannot be used is not accepted, and
requests to its Services are answered with 500. One that is behind others with all that it names, the same Services and
ports, is `Conflicted` (docs/controller.md#gateways-and-routes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tierwall.attach.reach import gateway_graph
from tierwall.attach.status import bounded_message
from tierwall.engines.envoy.config.app_protocol import service_port
from tierwall.engines.envoy.config.backend_tls import BACKEND_TLS_POLICY, policies_about, tls_change
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.resources.resource import Identity, Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.compiled_gateways import CompiledGateways
from tierwall.serve.controller.desired import WantedAncestor, WantedCondition, WantedRef

_CLOSING = "Meanwhile requests to its Services are answered with 500"
_AUTHORITIES = "caCertificateRefs"


def plan_backend_tls(gateways: CompiledGateways) -> Mapping[Identity, tuple[WantedAncestor, ...]]:
    """Return our entries of `status.ancestors` of every BackendTLSPolicy."""
    policies = sorted(gateways.snapshot.of_kind(*BACKEND_TLS_POLICY), key=lambda policy: policy.identity)
    entries: dict[Identity, list[WantedAncestor]] = {policy.identity: [] for policy in policies}
    for compiled in gateways.by_gateway.values() if policies else ():
        gateway = compiled.gateway
        ref = WantedRef(gateway.group, gateway.kind, gateway.namespace, gateway.name)
        for policy, first in _at(compiled.snapshot, gateway).items():
            entries[policy.identity].append(WantedAncestor(ref, _conditions(compiled.snapshot, policy, first)))
    return {identity: tuple(each) for identity, each in entries.items()}


def _at(snapshot: Snapshot, gateway: Resource) -> Mapping[Resource, Resource]:
    """Return the policies about what a Gateway leads to, each with the first of those that name the same.

    That is the policy itself if it is first anywhere. A policy about a port does not rival one about its Service.
    """
    paths = (path for path in gateway_graph(snapshot).request_paths() if path.gateway.identity == gateway.identity)
    refs = (path.backend for path in paths if path.backend is not None)
    backends = {(resource, ref.port) for ref in refs if (resource := ref.place.resource(snapshot)) is not None}
    out: dict[Resource, Resource] = {}
    for service, port in sorted(_ports(snapshot, backends), key=lambda each: (each[0].identity, each[1])):
        firsts: dict[str | None, Resource] = {}
        for policy, section in policies_about(snapshot, service, port):
            first = firsts.setdefault(section, policy)
            if out.get(policy) is not policy:
                out[policy] = first
    return out


def _ports(snapshot: Snapshot, backends: Iterable[tuple[Resource, int]]) -> set[tuple[Resource, int]]:
    return {behind for each in backends if (behind := service_port(snapshot, *each)) is not None}


def _conditions(snapshot: Snapshot, policy: Resource, first: Resource) -> tuple[WantedCondition, ...]:
    """Return the conditions of a policy; `first` is the first of those that name the same, itself or another."""
    resolved = WantedCondition("ResolvedRefs", "True", "ResolvedRefs", "All references are resolved")
    try:
        tls_change(snapshot, policy, http2=False)
    except Unenforceable as error:
        message = bounded_message([f"It cannot be used: {error}"], _CLOSING)
        if error.path[:1] != (_AUTHORITIES,):
            return WantedCondition("Accepted", "False", "Invalid", message), resolved
        reason = "InvalidKind" if any(_wrong_kinds(policy)) else "InvalidCACertificateRef"
        return (
            WantedCondition("Accepted", "False", "NoValidCACertificate", message),
            WantedCondition("ResolvedRefs", "False", reason, message),
        )
    if first is not policy:
        words = f"{first.reference} names the same and comes first"
        return WantedCondition("Accepted", "False", "Conflicted", words), resolved
    return WantedCondition("Accepted", "True", "Accepted", "Policy is accepted"), resolved


def _wrong_kinds(policy: Resource) -> Iterator[bool]:
    for ref in list_of_maps(nested_map(policy.spec, "validation").get(_AUTHORITIES)):
        yield (ref.get("group", ""), ref.get("kind")) != ("", "ConfigMap")
