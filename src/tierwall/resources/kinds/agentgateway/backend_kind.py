"""AgentgatewayBackend: a destination that is no Service (language models, MCP servers, agents, plain hosts)."""

from tierwall.resources.kinds.agentgateway.backend import backend_section, provider_section, target_section
from tierwall.resources.kinds.agentgateway.providers import LLM_PROVIDER
from tierwall.resources.kinds.agentgateway.scalars import long_string, short_string
from tierwall.resources.kinds.gateway_types.names import port_number, section_name
from tierwall.resources.kinds.gateway_types.status import conditions
from tierwall.resources.kinds.kind import Column, Kind
from tierwall.resources.kinds.meta import crd_label_selector
from tierwall.resources.schema import (
    array,
    at_least_one_of,
    enum,
    exactly_one_of,
    obj,
    optional,
    required,
    rule,
    string,
)

_ai = obj(
    optional("provider", obj(*LLM_PROVIDER, title="LLMProvider")),
    optional(
        "groups",
        array(
            obj(
                required(
                    "providers",
                    array(
                        obj(
                            required("name", section_name, "The name that a policy's sectionName refers to."),
                            *LLM_PROVIDER,
                            optional("policies", provider_section),
                            title="NamedLLMProvider",
                        ),
                        rule(
                            "self.all(p1, self.exists_one(p2, p1.name == p2.name))",
                            "provider names must be unique within a group",
                        ),
                        min_items=1,
                        max_items=16,
                    ),
                )
            ),
            min_items=1,
            max_items=8,
        ),
    ),
    exactly_one_of("provider", "groups"),
    title="AIBackend",
)

_mcp_target = obj(
    required("name", section_name, "The name that a policy's sectionName refers to."),
    optional(
        "selector",
        obj(
            optional("namespaces", crd_label_selector),
            optional("services", crd_label_selector),
            at_least_one_of("namespaces", "services"),
        ),
    ),
    optional(
        "static",
        obj(
            optional("host", short_string),
            optional("backendRef", obj(optional("name", string(default="")))),
            required("port", port_number),
            optional("path", long_string),
            optional("protocol", enum("SSE", "StreamableHTTP")),
            optional("policies", target_section),
            rule(
                "!has(self.backendRef) || !has(self.policies)",
                "mcp target policies may not be used with backendRef",
            ),
            exactly_one_of("host", "backendRef"),
        ),
    ),
    exactly_one_of("selector", "static"),
    title="MCPTarget",
)

_mcp = obj(
    required("targets", array(_mcp_target, min_items=1, max_items=128)),
    optional("sessionRouting", enum("Stateful", "Stateless")),
    optional("prefixMode", enum("Always", "Conditional", "Never")),
    optional("failureMode", enum("FailClosed", "FailOpen")),
    title="MCPBackend",
)

agentgateway_backend = Kind(
    group="agentgateway.dev",
    version="v1alpha1",
    kind="AgentgatewayBackend",
    plural="agentgatewaybackends",
    short_names=("agbe",),
    categories=("agentgateway",),
    columns=(
        Column("Accepted", "string", ".status.conditions[?(@.type=='Accepted')].status"),
        Column("Age", "date", ".metadata.creationTimestamp"),
    ),
    status_subresource=True,
    description="A destination that is no Service: a language model, an MCP server, an agent, a plain host.",
    schema=obj(
        required(
            "spec",
            obj(
                optional("ai", _ai),
                optional(
                    "static",
                    obj(
                        optional("host", short_string),
                        optional("port", port_number),
                        optional("unixPath", string(min_length=1)),
                        rule(
                            "has(self.unixPath) || (has(self.host) && has(self.port))",
                            "must specify either unixPath or both host and port",
                        ),
                        rule(
                            "!has(self.unixPath) || (!has(self.host) && !has(self.port))",
                            "unixPath and host/port are mutually exclusive",
                        ),
                    ),
                ),
                optional("dynamicForwardProxy", obj()),
                optional("mcp", _mcp),
                optional(
                    "aws",
                    obj(
                        optional(
                            "agentCore",
                            obj(required("agentRuntimeArn", string()), optional("qualifier", string())),
                        ),
                        exactly_one_of("agentCore"),
                    ),
                ),
                optional("a2a", obj(required("host", short_string), required("port", port_number))),
                optional("policies", backend_section, "A backend section that holds for this backend."),
                rule(
                    "has(self.policies) && has(self.policies.ai) ? has(self.ai) : true",
                    "AI policies require AI backend",
                ),
                rule(
                    "has(self.policies) && has(self.policies.mcp) ? has(self.mcp) : true",
                    "MCP policies require MCP backend",
                ),
                exactly_one_of("ai", "static", "dynamicForwardProxy", "mcp", "aws", "a2a"),
            ),
        ),
        optional("status", obj(optional("conditions", conditions()))),
    ),
)
