"""What HTTPRoute and GRPCRoute share: backend references with inline policies, session persistence, rules on rules."""

from tierwall.resources.kinds.agentgateway.backend import backend_section
from tierwall.resources.kinds.gateway_types.names import duration
from tierwall.resources.kinds.gateway_types.references import backend_object_reference
from tierwall.resources.schema import Rule, Schema, enum, extend, integer, obj, optional, rule, string


def backend_reference(filters: Schema) -> Schema:
    """A weighted backend of a route rule.

    `policies` is not of the Gateway API: it is a backend section, as an AgentgatewayPolicy has it, for this reference.
    """
    return extend(
        backend_object_reference,
        optional("weight", integer(minimum=0, maximum=1_000_000, format="int32", default=1)),
        optional("filters", filters),
        optional("policies", backend_section, "A backend section that holds for this reference alone."),
    )


session_persistence = obj(
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

DISTINCT_RULE_NAMES = rule(
    "self.all(l1, !has(l1.name) || self.exists_one(l2, has(l2.name) && l1.name == l2.name))",
    "Rule name must be unique within the route",
)


def bounded_matches(count: str) -> Rule:
    """At most 128 matches in all rules together; `count` says how many rule `{0}` has."""
    terms = " + ".join(f"(self.size() > {index} ? {count.format(index)} : 0)" for index in range(16))
    return rule(
        f"{terms} <= 128",
        "While 16 rules and 64 matches per rule are allowed, the total number of matches across all rules in a route"
        " must be less than 128",
    )
