"""What an AgentgatewayPolicy may target, by reference or by label, and with which section or port."""

from typing import Any

from tierwall.resources.kinds.gateway_types.names import group, kind, object_name, port_number, section_name
from tierwall.resources.schema import (
    Property,
    Schema,
    array,
    at_most_one_of,
    mapping,
    obj,
    optional,
    required,
    rule,
    string,
)

_ONE_SECTION = at_most_one_of("sectionName", "port")

_KNOWN_KINDS = rule(
    "self.all(r, (r.kind == 'Service' && r.group == '') || "
    "(r.kind == 'AgentgatewayBackend' && r.group == 'agentgateway.dev') || "
    "(r.kind in ['Gateway', 'HTTPRoute', 'GRPCRoute'] && r.group == 'gateway.networking.k8s.io') || "
    "(r.kind == 'ListenerSet' && r.group == 'gateway.networking.k8s.io') || "
    "(r.kind == 'InferencePool' && r.group == 'inference.networking.k8s.io'))",
    "targetRefs may only reference Gateway, HTTPRoute, GRPCRoute, ListenerSet, Service, AgentgatewayBackend, or"
    " InferencePool resources",
)

_ONE_KIND = rule(
    "self.all(l1, !self.exists(l2, l1.kind != l2.kind))", "Only one Kind of targetRef can be set on one policy"
)

_SECTION = optional(
    "sectionName",
    section_name,
    "A listener, a route rule, a Service port (as a number) or a sub-backend, by the kind of the target.",
)
_PORT = optional("port", port_number, "A Gateway's port; for frontend-only policies.")


def _targets(which: Property, **more: Any) -> Schema:
    """References to targets of one kind, or selectors of them."""
    parts = required("group", group()), required("kind", kind()), which, _SECTION, _PORT, _ONE_SECTION
    return array(obj(*parts), _KNOWN_KINDS, _ONE_KIND, min_items=1, max_items=16, **more)


target_refs = _targets(required("name", object_name, "An object in the policy's own namespace."), list_type="atomic")
target_selectors = _targets(required("matchLabels", mapping(string()), "Labels that all must be on the target."))
