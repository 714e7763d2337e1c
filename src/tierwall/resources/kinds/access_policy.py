"""AccessPolicy in its three generations, and XBackend: who may use which tools through a Gateway or at a backend.

* `agentic.prototype.x-k8s.io/v0alpha0`: the generation of the proposal "Allow AccessPolicy to target Gateway objects";
* `agentic.networking.x-k8s.io/v0alpha0`: the same after the group was renamed;
* `agentic.networking.x-k8s.io/v1alpha1`: an action on the policy, and MCP methods and HTTP matchers in its rules.

Each exists as `XAccessPolicy`, as the CRDs spell it, and as `AccessPolicy`, as the proposal does.
"""

from msgspec.structs import replace

from tierwall.resources.kinds.gateway_types.filters import external_auth
from tierwall.resources.kinds.gateway_types.names import (
    DNS_SUBDOMAIN,
    group,
    header_name,
    hostname,
    http_method,
    kind,
    object_name,
    port_number,
    section_name,
)
from tierwall.resources.kinds.gateway_types.status import conditions, policy_status
from tierwall.resources.kinds.kind import Kind
from tierwall.resources.schema import (
    Property,
    Rule,
    Schema,
    array,
    enum,
    exactly_one_of,
    obj,
    optional,
    required,
    rule,
    string,
    warning,
)

PROTOTYPE_GROUP = "agentic.prototype.x-k8s.io"
NETWORKING_GROUP = "agentic.networking.x-k8s.io"

_SAME_KIND = rule("self.all(ref, ref.kind == self[0].kind)", "All targetRefs must have the same Kind")
_DISTINCT_NAMES = rule("self.all(r, self.filter(x, x.name == r.name).size() == 1)", "AccessRule names must be unique")

_rule_name = string(min_length=1, max_length=63, pattern=DNS_SUBDOMAIN)


def _target_refs(*rules: Rule) -> Property:
    return required(
        "targetRefs",
        array(
            obj(
                required("group", group()),
                required("kind", kind()),
                required("name", object_name, "An object in the policy's own namespace."),
                optional("sectionName", section_name, "A listener of the Gateway."),
            ),
            *rules,
            min_items=1,
            max_items=10,
            list_type="atomic",
        ),
        "The Gateways or the backends, never both, that the policy guards.",
    )


_spiffe_id = string(pattern=r"^spiffe://[a-z0-9._-]+(?:/[A-Za-z0-9._-]+)*$")
_SOURCE_MEMBERS = (
    optional("spiffe", _spiffe_id, "The caller's SPIFFE id, compared exactly."),
    optional(
        "serviceAccount",
        obj(
            required("name", string()),
            optional("namespace", string(), "The policy's own namespace if left out."),
        ),
    ),
)
_source_type = enum("ServiceAccount", "SPIFFE")


# v0alpha0


def _needs(type_name: str, member: str) -> Rule:
    return rule(
        f"self.type == '{type_name}' ? has(self.{member}) : true",
        f"{member} must be specified when type is set to '{type_name}'",
    )


_tools = array(string(), list_type="set")

_v0_authorization = obj(
    required("type", enum("InlineTools", "ExternalAuth", "CEL")),
    optional("tools", _tools, "The tools that may be called; an empty list allows none."),
    optional("externalAuth", external_auth),
    optional("cel", obj(required("expression", string()), optional("message", string()))),
    _needs("InlineTools", "tools"),
    _needs("ExternalAuth", "externalAuth"),
    _needs("CEL", "cel"),
    rule(
        "[has(self.tools), has(self.externalAuth), has(self.cel)].filter(x, x).size() <= 1",
        "only one of tools, externalAuth, or cel can be specified",
    ),
)

_V0_RULE = (
    required("source", obj(required("type", _source_type), *_SOURCE_MEMBERS)),
    optional("authorization", _v0_authorization, "Without it no tool may be called."),
)


def _v0alpha0(group_name: str, rule_parts: tuple[Property | Rule, ...], *rules: Rule) -> Kind:
    """The generation that only knows rules; they differ between the groups in whether they have names."""
    spec = obj(
        _target_refs(
            rule(
                f"self.all(x, (x.group == '{group_name}' && x.kind == 'XBackend') || "
                "(x.group == 'gateway.networking.k8s.io' && x.kind == 'Gateway'))",
                f"TargetRef must have group {group_name} and kind XBackend, or group gateway.networking.k8s.io and"
                " kind Gateway",
            ),
            _SAME_KIND,
        ),
        required(
            "rules",
            array(
                obj(*rule_parts, *_V0_RULE),
                *rules,
                rule(
                    "self.filter(r, has(r.authorization) && r.authorization.type == 'ExternalAuth').size() <= 1",
                    "a maximum of one rule per policy can specify 'ExternalAuth' authorization type",
                ),
                min_items=1,
                max_items=10,
                list_type="atomic",
            ),
            "What is allowed; a request that no rule allows is denied.",
        ),
    )
    return _policy(group_name, "v0alpha0", spec)


def _policy(group_name: str, version: str, spec: Schema) -> Kind:
    return Kind(
        group=group_name,
        version=version,
        kind="XAccessPolicy",
        plural="xaccesspolicies",
        status_subresource=True,
        description="Who may use which tools through a Gateway or at a backend.",
        schema=obj(required("spec", spec), optional("status", policy_status)),
    )


# The oldest policies had no rule names, and listed tools on the rule itself.
_prototype = _v0alpha0(
    PROTOTYPE_GROUP,
    (
        optional("name", _rule_name),
        optional("tools", _tools),
        rule("!(has(self.tools) && has(self.authorization))", "only one of tools or authorization can be specified"),
    ),
    rule(
        "self.all(r, !has(r.name) || self.filter(x, has(x.name) && x.name == r.name).size() == 1)",
        "AccessRule names must be unique",
    ),
)
_networking = replace(_v0alpha0(NETWORKING_GROUP, (required("name", _rule_name),), _DISTINCT_NAMES), storage=False)


# v1alpha1

_METHODS_WITH_PARAMS = "['prompts/get', 'tools/call', 'resources/subscribe', 'resources/unsubscribe', 'resources/read']"

_mcp_method = obj(
    required(
        "name",
        enum(
            "tools",
            "prompts",
            "resources",
            "prompts/list",
            "tools/list",
            "resources/list",
            "resources/templates/list",
            "prompts/get",
            "tools/call",
            "resources/subscribe",
            "resources/unsubscribe",
            "resources/read",
        ),
        "A method, or a category that stands for all its methods.",
    ),
    optional(
        "params",
        array(
            # Upstream allows 20 characters, too few for the tool names of real servers.
            string(
                warning("size(self) <= 20", "longer than 20 characters: other implementations refuse this name"),
                max_length=128,
            ),
            max_items=10,
            list_type="set",
        ),
        "The names (of tools, prompts, resources) that the method may be used on; all if left out.",
    ),
    rule(
        f"has(self.params) && self.params.size() > 0 ? self.name in {_METHODS_WITH_PARAMS} : true",
        "Params can only be specified for get, call, subscribe, unsubscribe, or read methods",
    ),
)

_authorization = obj(
    required("type", enum("Inline", "CEL")),
    optional("methods", array(http_method, max_items=9, list_type="set"), "HTTP methods, any of which matches."),
    optional(
        "paths",
        array(
            obj(
                optional("type", enum("Exact", "PathPrefix", "RegularExpression", default="PathPrefix")),
                optional("value", string(max_length=1024, default="")),
            ),
            max_items=10,
            list_type="atomic",
        ),
        "Paths, any of which matches.",
    ),
    optional(
        "headers",
        array(
            obj(
                optional("type", enum("Exact", "RegularExpression", default="Exact")),
                required("name", header_name),
                required("value", string(min_length=1, max_length=4096)),
            ),
            max_items=10,
            list_type="atomic",
        ),
        "Headers, all of which must match.",
    ),
    optional("hosts", array(hostname, max_items=10, list_type="set"), "Hosts, any of which matches."),
    optional("ports", array(port_number, max_items=10, list_type="set"), "The listener's port."),
    optional(
        "mcp",
        obj(
            optional("methods", array(_mcp_method, max_items=10, list_type="map", keys=("name",))),
            optional(
                "mcpBaseProtocolMethodsOption",
                enum(
                    "SKIP_BASE_PROTOCOL_METHODS",
                    "MATCH_BASE_PROTOCOL_METHODS",
                    default="SKIP_BASE_PROTOCOL_METHODS",
                ),
                "Whether the methods that every client needs (initialize, ping, …) match as well.",
            ),
        ),
    ),
    optional("cel", obj(required("expression", string())), "A condition on tools/call requests."),
    rule("self.type == 'CEL' ? has(self.cel) : true", "cel must be specified when type is set to 'CEL'"),
    rule("self.type == 'Inline' ? !has(self.cel) : true", "cel must not be specified when type is set to 'Inline'"),
)

_v1alpha1 = _policy(
    NETWORKING_GROUP,
    "v1alpha1",
    obj(
        _target_refs(_SAME_KIND),
        required(
            "action",
            enum("Allow", "ExternalAuth"),
            "What a matching rule means: the request is allowed, or an authorizer is asked.",
        ),
        optional("externalAuth", external_auth, "The authorizer to ask."),
        optional(
            "rules",
            array(
                obj(
                    required("name", _rule_name),
                    optional("source", obj(optional("type", _source_type), *_SOURCE_MEMBERS), "Everybody if left out."),
                    optional("authorization", _authorization, "Everything if left out."),
                ),
                _DISTINCT_NAMES,
                max_items=10,
                list_type="atomic",
            ),
            "Which requests the policy concerns; all if left out.",
        ),
        rule(
            "self.action == 'ExternalAuth' ? has(self.externalAuth) : true",
            "externalAuth must be specified when action is set to 'ExternalAuth'",
        ),
    ),
)


def _as_in_the_proposal(policy: Kind) -> Kind:
    return replace(policy, kind="AccessPolicy", plural="accesspolicies")


_backend = Kind(
    group=NETWORKING_GROUP,
    version="v0alpha0",
    kind="XBackend",
    plural="xbackends",
    status_subresource=True,
    description="An MCP server, in the cluster or outside.",
    schema=obj(
        required(
            "spec",
            obj(
                required(
                    "mcp",
                    obj(
                        optional("serviceName", string(), "A Service in the backend's own namespace."),
                        optional("hostname", string(), "A host outside the cluster."),
                        required("port", port_number),
                        optional("path", string(default="/mcp"), "The path of MCP requests."),
                        exactly_one_of("serviceName", "hostname"),
                    ),
                )
            ),
        ),
        optional("status", obj(optional("conditions", conditions(max_items=None)))),
    ),
)

KINDS = (
    _prototype,
    _as_in_the_proposal(_prototype),
    _networking,
    _as_in_the_proposal(_networking),
    _v1alpha1,
    _as_in_the_proposal(_v1alpha1),
    replace(_backend, group=PROTOTYPE_GROUP),
    _backend,
)
