"""AgentgatewayModel: a language model under a name of one's own, at a provider or as a choice between other models."""

from tierwall.resources.kinds.agentgateway.ai import field_transformations
from tierwall.resources.kinds.agentgateway.authorization import authorization
from tierwall.resources.kinds.agentgateway.backend import health
from tierwall.resources.kinds.agentgateway.backend_auth import model_auth
from tierwall.resources.kinds.agentgateway.connection import backend_tls, backend_tunnel
from tierwall.resources.kinds.agentgateway.prompt_guard import prompt_guard
from tierwall.resources.kinds.agentgateway.providers import (
    azure_provider,
    bedrock_provider,
    custom_provider,
    vertex_ai_provider,
)
from tierwall.resources.kinds.agentgateway.scalars import cel_expression, long_string
from tierwall.resources.kinds.agentgateway.traffic import header_modifiers
from tierwall.resources.kinds.gateway_types.references import parent_reference
from tierwall.resources.kinds.gateway_types.status import conditions
from tierwall.resources.kinds.kind import Column, Kind
from tierwall.resources.schema import (
    Property,
    Rule,
    Schema,
    array,
    at_least_one_of,
    enum,
    exactly_one_of,
    integer,
    obj,
    optional,
    refine,
    required,
    rule,
    string,
    without,
)


def _only_for(member: str, provider: str) -> Rule:
    return rule(
        f"has(self.{member}) == (has(self.provider) && self.provider == '{provider}')",
        f"{member} must be set if and only if provider is {provider}",
    )


def _not_inward(pattern: str) -> Rule:
    return rule(
        f'!has(self.baseURL) || !self.baseURL.matches("{pattern}")',
        "baseURL cannot target localhost, loopback, or link-local addresses",
    )


_ONE_WILDCARD = (
    "!self.contains('*') || (self.indexOf('*') == self.lastIndexOf('*') && "
    "(self.indexOf('*') == 0 || self.indexOf('*') == size(self) - 1))"
)

_policies = obj(
    optional("auth", model_auth),
    optional("authorization", authorization),
    optional("transformations", field_transformations),
    optional("finalTransformations", field_transformations),
    optional("headers", header_modifiers),
    optional("health", health),
    optional("promptGuard", prompt_guard),
    optional("tls", backend_tls),
    optional("tunnel", backend_tunnel),
    at_least_one_of(
        "auth",
        "authorization",
        "finalTransformations",
        "headers",
        "health",
        "promptGuard",
        "tls",
        "transformations",
        "tunnel",
    ),
    title="ModelPolicies",
)


def _targets(*rules: Rule, more: Property) -> Schema:
    """The models that a virtual model chooses between."""
    target = obj(required("modelRef", obj(optional("name", string(default="")))), optional("model", long_string), more)
    return obj(required("targets", array(target, *rules, min_items=1, max_items=64)))


_virtual_model = obj(
    optional(
        "weighted", _targets(more=optional("weight", integer(minimum=1, maximum=1_000_000, format="int32", default=1)))
    ),
    optional("failover", _targets(more=required("priority", integer(minimum=0, maximum=1_000_000, format="int32")))),
    optional(
        "conditional",
        _targets(
            rule(
                "self.filter(e, !has(e.when)).size() <= 1 && "
                "(!self.exists(e, !has(e.when)) || !has(self[size(self) - 1].when))",
                "conditional targets without when must be last",
            ),
            more=optional("when", cel_expression),
        ),
    ),
    exactly_one_of("weighted", "failover", "conditional"),
    title="VirtualModel",
)

agentgateway_model = Kind(
    group="agentgateway.dev",
    version="v1alpha1",
    kind="AgentgatewayModel",
    plural="agentgatewaymodels",
    short_names=("agmodel",),
    categories=("agentgateway",),
    columns=(Column("Age", "date", ".metadata.creationTimestamp"),),
    status_subresource=True,
    description="A language model under a name of one's own.",
    schema=obj(
        required(
            "spec",
            obj(
                required("parentRefs", array(parent_reference, min_items=1, max_items=16)),
                optional(
                    "match",
                    obj(
                        optional(
                            "model",
                            refine(
                                long_string,
                                rule(
                                    _ONE_WILDCARD,
                                    "model wildcards must be '*', a suffix like 'gpt-*', or a prefix like '*-latest'",
                                ),
                            ),
                        )
                    ),
                ),
                optional(
                    "provider",
                    enum(
                        "Anthropic",
                        "Azure",
                        "Baseten",
                        "Bedrock",
                        "Cerebras",
                        "Cohere",
                        "Custom",
                        "Deepinfra",
                        "Deepseek",
                        "Fireworks",
                        "Gemini",
                        "Groq",
                        "Huggingface",
                        "Mistral",
                        "Ollama",
                        "OpenAI",
                        "Openrouter",
                        "TogetherAI",
                        "VertexAI",
                        "XAI",
                    ),
                ),
                optional("baseURL", long_string),
                optional("azure", without(azure_provider, "model")),
                optional("bedrock", without(bedrock_provider, "model")),
                optional("custom", without(custom_provider, "model")),
                optional("vertexai", without(vertex_ai_provider, "model")),
                optional("virtualModel", _virtual_model),
                optional("visibility", enum("Internal", "Public", default="Public")),
                optional("policies", _policies),
                rule("has(self.provider) || !has(self.baseURL)", "baseURL requires provider"),
                rule("!has(self.virtualModel) || !has(self.policies)", "policies cannot be used with virtualModel"),
                rule("!has(self.virtualModel) || self.visibility != 'Internal'", "virtual models must be public"),
                rule(
                    "!has(self.virtualModel) || !has(self.match) || !has(self.match.model) || "
                    "!self.match.model.contains('*')",
                    "virtual model match.model must be an exact name",
                ),
                rule(
                    "!has(self.provider) || self.provider != 'Ollama' || has(self.baseURL)", "ollama requires baseURL"
                ),
                rule(
                    "!has(self.baseURL) || (isURL(self.baseURL) && (url(self.baseURL).getScheme() == 'http' || "
                    "url(self.baseURL).getScheme() == 'https') && url(self.baseURL).getHostname() != \"\")",
                    "baseURL must be an absolute http or https URL with a host",
                ),
                _not_inward(r"(?i)^https?://(localhost|[^/]+\\.localhost)(:[0-9]+)?(/|$)"),
                _not_inward(r"^https?://127(\\.[0-9]{1,3}){0,3}(:[0-9]+)?(/|$)"),
                _not_inward(r"^https?://169\\.254\\.[0-9]{1,3}\\.[0-9]{1,3}(:[0-9]+)?(/|$)"),
                _not_inward(r"(?i)^https?://\\[(::1|fe[89ab][0-9a-f:]*)\\](:[0-9]+)?(/|$)"),
                _only_for("azure", "Azure"),
                _only_for("vertexai", "VertexAI"),
                _only_for("bedrock", "Bedrock"),
                _only_for("custom", "Custom"),
                exactly_one_of("provider", "virtualModel"),
            ),
        ),
        optional("status", obj(optional("conditions", conditions()))),
    ),
)
