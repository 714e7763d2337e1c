"""AgentgatewayPolicy: which sections it may have, and which targets each section may have."""

from collections.abc import Iterable

from tierwall.resources.kinds.agentgateway.backend import backend_section
from tierwall.resources.kinds.agentgateway.frontend import frontend_section
from tierwall.resources.kinds.agentgateway.targets import target_refs, target_selectors
from tierwall.resources.kinds.agentgateway.traffic import traffic_section
from tierwall.resources.kinds.gateway_types.status import policy_status
from tierwall.resources.kinds.kind import Column, Kind
from tierwall.resources.schema import Rule, enum, exactly_one_of, obj, optional, required, rule

_LISTS = ("targetRefs", "targetSelectors")
_CONNECTION_FIELDS = ("tcp", "networkAuthorization", "tls", "http", "proxyProtocol", "connect")


def _for_both_lists(template: str, message: str) -> Iterable[Rule]:
    """One rule for targetRefs and one for targetSelectors; `{0}` in the template is the list's name."""
    return (rule(template.format(name), message) for name in _LISTS)


def _no_target(section: str, test: str, message: str) -> Rule:
    """No target of either list may satisfy `test` when the policy has `section`."""
    lists = " && ".join(f"(!has(self.{name}) || !self.{name}.exists(t, {test}))" for name in _LISTS)
    return rule(f"!has(self.backend) || !has(self.{section}) || ({lists})", message)


_SECTION_RULES = (
    rule(
        "has(self.traffic) || has(self.frontend) || has(self.backend)",
        "At least one of traffic, frontend, or backend must be provided.",
    ),
    rule(
        "!has(self.strategy) || !has(self.strategy.inheritance) || "
        "(has(self.traffic) && !has(self.frontend) && !has(self.backend))",
        "strategy.inheritance may only be set on traffic policies",
    ),
    _no_target("backend.mcp", "t.kind == 'Service'", "backend.mcp may not be used with a Service target"),
    _no_target(
        "backend.mcp",
        "t.kind == 'AgentgatewayBackend' && has(t.sectionName)",
        "backend.mcp may not target an AgentgatewayBackend sectionName",
    ),
    _no_target("backend.ai", "t.kind == 'Service'", "backend.ai may not be used with a Service target"),
    rule(
        "!(has(self.traffic) && has(self.traffic.jwtAuthentication) && has(self.backend) && "
        "has(self.backend.mcp) && has(self.backend.mcp.authentication))",
        "traffic.jwtAuthentication may not be used with backend.mcp.authentication in the same policy",
    ),
    *_for_both_lists(
        "has(self.frontend) && has(self.{0}) ? self.{0}.all(t, t.kind == 'Gateway') : true",
        "the 'frontend' field can only target a Gateway",
    ),
    *_for_both_lists(
        f"has(self.frontend) && ({' || '.join(f'has(self.frontend.{name})' for name in _CONNECTION_FIELDS)}) && "
        "has(self.{0}) ? self.{0}.all(t, !has(t.sectionName)) : true",
        "frontend tcp, networkAuthorization, tls, http, proxyProtocol, and connect policies may only target a Gateway"
        " or port, not a listener (sectionName)",
    ),
    *_for_both_lists(
        "has(self.{0}) && self.{0}.exists(t, has(t.port)) ? "
        "(has(self.frontend) && !has(self.traffic) && !has(self.backend)) : true",
        "port may only be set on frontend-only policies (not traffic or backend)",
    ),
    *_for_both_lists(
        "has(self.traffic) && has(self.{0}) ? self.{0}.all(t, "
        "t.kind in ['Gateway', 'HTTPRoute', 'GRPCRoute', 'ListenerSet', 'InferencePool']) : true",
        "the 'traffic' field can only target a Gateway, ListenerSet, GRPCRoute, HTTPRoute, or InferencePool",
    ),
    *_for_both_lists(
        "has(self.{0}) && has(self.traffic) && has(self.traffic.phase) && self.traffic.phase == 'PreRouting' ? "
        "self.{0}.all(t, t.kind in ['Gateway', 'ListenerSet']) : true",
        "the 'traffic.phase=PreRouting' field can only target a Gateway or ListenerSet",
    ),
    *_for_both_lists(
        "!has(self.{0}) || self.{0}.all(t, t.kind != 'Service' || !has(t.sectionName) || "
        "(int(t.sectionName) >= 1 && int(t.sectionName) <= 65535))",
        "Service sectionName must be a numeric port from 1 to 65535",
    ),
    exactly_one_of("targetRefs", "targetSelectors"),
)

agentgateway_policy = Kind(
    group="agentgateway.dev",
    version="v1alpha1",
    kind="AgentgatewayPolicy",
    plural="agentgatewaypolicies",
    short_names=("agpol",),
    categories=("agentgateway",),
    columns=(
        Column("Accepted", "string", ".status.ancestors[*].conditions[?(@.type=='Accepted')].status"),
        Column("Attached", "string", ".status.ancestors[*].conditions[?(@.type=='Attached')].status"),
        Column("Age", "date", ".metadata.creationTimestamp"),
    ),
    status_subresource=True,
    description="Settings for the gateways, listeners, routes and backends that it targets.",
    schema=obj(
        required(
            "spec",
            obj(
                optional("targetRefs", target_refs, "The targets, by name."),
                optional("targetSelectors", target_selectors, "The targets, by label."),
                optional(
                    "strategy",
                    obj(optional("inheritance", enum("Default", "Override"))),
                    "With `Override`, more specific policies do not replace what this one sets.",
                ),
                optional("frontend", frontend_section, "How a Gateway takes incoming connections."),
                optional("traffic", traffic_section, "What happens to requests on their way."),
                optional("backend", backend_section, "How the gateway connects to destinations."),
                *_SECTION_RULES,
            ),
        ),
        optional("status", policy_status),
    ),
)
