"""Providers of language models: what each needs to be known by, and where it is reached."""

from tierwall.resources.kinds.agentgateway.scalars import long_string, short_string
from tierwall.resources.kinds.gateway_types.names import port_number
from tierwall.resources.kinds.gateway_types.references import backend_object_reference
from tierwall.resources.schema import (
    Property,
    Rule,
    array,
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

custom_provider = obj(
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

openai_provider = obj(
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

azure_provider = obj(
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

azure_openai_provider = obj(
    required("endpoint", short_string),
    optional("deploymentName", short_string),
    optional("apiVersion", _TINY),
    rule(
        "!has(self.apiVersion) || self.apiVersion == 'v1' ? true : has(self.deploymentName)",
        "deploymentName is required for this apiVersion",
    ),
    title="AzureOpenAIProvider",
)

bedrock_provider = obj(
    _model,
    optional("region", string(min_length=1, max_length=63, pattern="^[a-z0-9-]+$", default="us-east-1")),
    optional("guardrail", obj(required("identifier", short_string), required("version", short_string))),
    title="BedrockProvider",
)

vertex_ai_provider = obj(
    _model,
    required("projectId", _TINY),
    optional("region", string(min_length=1, max_length=64, default="global")),
    title="VertexAIProvider",
)

LLM_PROVIDER: tuple[Property | Rule, ...] = (
    optional("openai", openai_provider),
    optional("azureopenai", azure_openai_provider),
    optional("azure", azure_provider),
    optional("anthropic", obj(_model)),
    optional("gemini", obj(_model)),
    optional("vertexai", vertex_ai_provider),
    optional("bedrock", bedrock_provider),
    optional("custom", custom_provider),
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
