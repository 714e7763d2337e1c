"""What HTTPRoute and GRPCRoute share: the kind itself, and of its rules names, backends, persistence and matches."""

from typing import Any

from tierwall.resources.kinds.agentgateway.backend import backend_section
from tierwall.resources.kinds.gateway_types.names import duration, header_name, hostname, section_name
from tierwall.resources.kinds.gateway_types.references import (
    GATEWAY_GROUP,
    backend_object_reference,
    parent_references,
)
from tierwall.resources.kinds.gateway_types.status import route_status
from tierwall.resources.kinds.kind import Column, Kind
from tierwall.resources.schema import (
    Property,
    Rule,
    Schema,
    array,
    enum,
    extend,
    integer,
    obj,
    optional,
    required,
    rule,
    string,
)


def route_kind(name: str, what: str, rules: Schema) -> Kind:
    """A kind of routes, by the schema of its rules (`route_rules`)."""
    return Kind(
        group=GATEWAY_GROUP,
        version="v1",
        kind=name,
        plural=f"{name.lower()}s",
        categories=("gateway-api",),
        columns=(
            Column("Hostnames", "string", ".spec.hostnames"),
            Column("Age", "date", ".metadata.creationTimestamp"),
        ),
        status_subresource=True,
        description=f"Routes {what} requests from Gateways and ListenerSets to backends.",
        schema=obj(
            required(
                "spec",
                obj(
                    optional("parentRefs", parent_references),
                    optional("hostnames", array(hostname, max_items=16, list_type="atomic")),
                    optional("rules", rules),
                    optional("useDefaultGateways", enum("All", "None")),
                ),
            ),
            optional("status", route_status),
        ),
    )


def route_rules(rule_schema: Schema, count: str, **more: Any) -> Schema:
    """The rules of a route; `count` says how many matches rule `{0}` has."""
    return array(rule_schema, _bounded_matches(count), _DISTINCT_RULE_NAMES, max_items=16, list_type="atomic", **more)


def route_rule(matches: Schema, filters: Schema, *parts: Property | Rule, title: str) -> Schema:
    """One rule of a route: what it matches, what it does with it, and where that goes."""
    return obj(
        optional("name", section_name, "The name by which a policy's sectionName refers to this rule."),
        optional("matches", matches),
        optional("filters", filters),
        optional("backendRefs", array(_backend_reference(filters), max_items=16, list_type="atomic")),
        *(part for part in parts if isinstance(part, Property)),
        optional("sessionPersistence", _session_persistence),
        *(part for part in parts if isinstance(part, Rule)),
        title=title,
    )


def named_matches(value: Schema) -> Schema:
    """Headers or query parameters by name: each exactly, or by a regular expression."""
    return array(
        obj(
            required("name", header_name),
            optional("type", enum("Exact", "RegularExpression", default="Exact")),
            required("value", value),
        ),
        max_items=16,
        list_type="map",
        keys=("name",),
    )


def _backend_reference(filters: Schema) -> Schema:
    """A weighted backend of a route rule.

    `policies` is not of the Gateway API: it is a backend section, as an AgentgatewayPolicy has it, for this reference.
    """
    return extend(
        backend_object_reference,
        optional("weight", integer(minimum=0, maximum=1_000_000, format="int32", default=1)),
        optional("filters", filters),
        optional("policies", backend_section, "A backend section that holds for this reference alone."),
    )


_session_persistence = obj(
    optional("sessionName", string(max_length=128)),
    optional("type", enum("Cookie", "Header", default="Cookie")),
    optional("absoluteTimeout", duration),
    optional("idleTimeout", duration),
    optional("cookieConfig", obj(optional("lifetimeType", enum("Permanent", "Session", default="Session")))),
    rule(
        "!has(self.cookieConfig) || !has(self.cookieConfig.lifetimeType) || "
        "self.cookieConfig.lifetimeType != 'Permanent' || has(self.absoluteTimeout)",
        "AbsoluteTimeout must be specified when cookie lifetimeType is Permanent",
    ),
    rule("!has(self.cookieConfig) || self.type == 'Cookie'", "cookieConfig can only be set with type Cookie"),
    title="SessionPersistence",
)

_DISTINCT_RULE_NAMES = rule(
    "self.all(l1, !has(l1.name) || self.exists_one(l2, has(l2.name) && l1.name == l2.name))",
    "Rule name must be unique within the route",
)


def _bounded_matches(count: str) -> Rule:
    """At most 128 matches in all rules together; `count` says how many rule `{0}` has."""
    terms = " + ".join(f"(self.size() > {index} ? {count.format(index)} : 0)" for index in range(16))
    return rule(
        f"{terms} <= 128",
        "While 16 rules and 64 matches per rule are allowed, the total number of matches across all rules in a route"
        " must be less than 128",
    )
