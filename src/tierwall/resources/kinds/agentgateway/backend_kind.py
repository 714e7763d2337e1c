"""AgentgatewayBackend: a destination that is no Service (language models, MCP servers, agents, plain hosts)."""

from tierwall.resources.kinds.agentgateway.backend import backend_section, provider_section, target_section
from tierwall.resources.kinds.agentgateway.scalars import long_string, short_string
from tierwall.resources.kinds.gateway_types.names import port_number, section_name
from tierwall.resources.kinds.gateway_types.references import backend_object_reference
from tierwall.resources.kinds.gateway_types.status import conditions
from tierwall.resources.kinds.kind import Column, Kind
from tierwall.resources.kinds.meta import crd_label_selector
from tierwall.resources.schema import (
    Property,
    Rule,
    array,
    at_least_one_of,
    enum,
    exactly_one_of,
    obj,
    optional,
    required,
    rule,
    string,
    without,
)

_TINY = string(min_length=1, max_length=64)
_model = optional("model", short_string)
_moderation_mode = obj(required("mode", enum("Block", "Score")))

_custom = obj(
    optional("backendRef", without(backend_object_reference, "namespace")),
    required(
        "formats",
        array(
            obj(
                required(
                    "type",
                    enum(
                        "AnthropicTokenCount",
                        "Completions",
                        "Embeddings",
                        "Messages",
                        "Realtime",
                        "Rerank",
                        "Responses",
                    ),
                ),
                optional("path", long_string),
                rule("!has(self.path) || self.path.startsWith('/')", "path must start with /"),
            ),
            min_items=1,
            max_items=6,
        ),
    ),
    _model,
    rule(
        '!has(self.backendRef) || (((!has(self.backendRef.group) || self.backendRef.group == "") && '
        "(!has(self.backendRef.kind) || self.backendRef.kind == 'Service')) || "
        "(has(self.backendRef.group) && self.backendRef.group == 'inference.networking.k8s.io' && "
        "has(self.backendRef.kind) && self.backendRef.kind == 'InferencePool'))",
        "custom provider backendRef may target only Service or InferencePool",
    ),
    title="CustomProvider",
)

_openai = obj(
    _model,
    optional(
        "moderation",
        obj(
            optional("model", string(min_length=1, max_length=256, default="omni-moderation-latest")),
            optional("policy", obj(optional("input", _moderation_mode), optional("output", _moderation_mode))),
        ),
    ),
    title="OpenAIProvider",
)

_azure = obj(
    required("resourceName", short_string),
    required("resourceType", enum("Foundry", "OpenAI")),
    optional("projectName", short_string),
    optional("apiVersion", _TINY),
    _model,
    rule(
        "self.resourceType != 'Foundry' || has(self.projectName)",
        "projectName is required when resourceType is Foundry",
    ),
    title="AzureProvider",
)

_azure_openai = obj(
    required("endpoint", short_string),
    optional("deploymentName", short_string),
    optional("apiVersion", _TINY),
    rule(
        "!has(self.apiVersion) || self.apiVersion == 'v1' ? true : has(self.deploymentName)",
        "deploymentName is required for this apiVersion",
    ),
    title="AzureOpenAIProvider",
)

_bedrock = obj(
    _model,
    optional("region", string(min_length=1, max_length=63, pattern="^[a-z0-9-]+$", default="us-east-1")),
    optional("guardrail", obj(required("identifier", short_string), required("version", short_string))),
    title="BedrockProvider",
)

_vertex_ai = obj(
    _model,
    required("projectId", _TINY),
    optional("region", string(min_length=1, max_length=64, default="global")),
    title="VertexAIProvider",
)

_PROVIDER: tuple[Property | Rule, ...] = (
    optional("openai", _openai),
    optional("azureopenai", _azure_openai),
    optional("azure", _azure),
    optional("anthropic", obj(_model)),
    optional("gemini", obj(_model)),
    optional("vertexai", _vertex_ai),
    optional("bedrock", _bedrock),
    optional("custom", _custom),
    optional("host", short_string),
    optional("port", port_number),
    optional("path", long_string),
    optional("pathPrefix", long_string),
    rule(
        "has(self.host) || has(self.port) ? has(self.host) && has(self.port) : true",
        "both host and port must be set together",
    ),
    rule(
        "has(self.custom) ? has(self.custom.backendRef) != has(self.host) : true",
        "custom providers must specify exactly one of backendRef or host and port",
    ),
    rule("!(has(self.path) && has(self.pathPrefix))", "path and pathPrefix are mutually exclusive"),
    rule(
        "!(has(self.custom) && self.custom.formats.exists(f, has(f.path)) && (has(self.path) || has(self.pathPrefix)))",
        "path, pathPrefix, and custom format paths are mutually exclusive",
    ),
    rule("has(self.pathPrefix) ? has(self.host) : true", "pathPrefix requires host to be set"),
    exactly_one_of("openai", "azureopenai", "azure", "anthropic", "gemini", "vertexai", "bedrock", "custom"),
)

_ai = obj(
    optional("provider", obj(*_PROVIDER, title="LLMProvider")),
    optional(
        "groups",
        array(
            obj(
                required(
                    "providers",
                    array(
                        obj(
                            required("name", section_name, "The name that a policy's sectionName refers to."),
                            *_PROVIDER,
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
