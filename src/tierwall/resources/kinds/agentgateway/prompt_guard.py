"""Prompt guards: checks on what goes to a language model and what comes back."""

from tierwall.resources.kinds.agentgateway.backend_auth import bedrock_auth, google_auth, openai_auth
from tierwall.resources.kinds.agentgateway.connection import backend_http, backend_tcp, backend_tls, backend_tunnel
from tierwall.resources.kinds.agentgateway.scalars import cel_expression, failure_mode, short_string
from tierwall.resources.kinds.gateway_types.names import header_name
from tierwall.resources.kinds.gateway_types.references import backend_object_reference
from tierwall.resources.schema import (
    Schema,
    array,
    at_least_one_of,
    enum,
    exactly_one_of,
    integer,
    mapping,
    obj,
    optional,
    required,
    rule,
    string,
)


def _service_policies(auth: Schema) -> Schema:
    """How to reach the service that does the check."""
    return obj(
        optional("auth", auth),
        optional("http", backend_http),
        optional("tcp", backend_tcp),
        optional("tls", backend_tls),
        optional("tunnel", backend_tunnel),
        at_least_one_of("auth", "http", "tcp", "tls", "tunnel"),
    )


_bedrock = obj(
    required("identifier", short_string),
    required("version", short_string),
    required("region", short_string),
    optional("policies", _service_policies(bedrock_auth)),
    title="BedrockGuardrails",
)

_model_armor = obj(
    required("projectId", short_string),
    required("templateId", short_string),
    optional("location", string(min_length=1, max_length=256, default="us-central1")),
    optional("policies", _service_policies(google_auth)),
    title="GoogleModelArmor",
)

_moderation = obj(
    optional("model", string()), optional("policies", _service_policies(openai_auth)), title="OpenAIModeration"
)

_regex = obj(
    optional("action", enum("Mask", "Reject", default="Mask")),
    optional("builtins", array(enum("CaSin", "CreditCard", "Email", "PhoneNumber", "Ssn"))),
    optional("matches", array(string(min_length=1, max_length=1024))),
    title="RegexGuard",
)

_webhook = obj(
    required("backendRef", backend_object_reference),
    optional("failureMode", failure_mode),
    optional(
        "forwardHeaderMatches",
        array(
            obj(
                required("name", header_name),
                optional("type", enum("Exact", "RegularExpression", default="Exact")),
                required("value", string(min_length=1, max_length=4096)),
            )
        ),
    ),
    optional("headers", mapping(cel_expression, max_properties=64)),
    title="WebhookGuard",
)

_rejection = obj(
    optional("message", string(default="The request was rejected due to inappropriate content")),
    optional("statusCode", integer(minimum=200, maximum=599, format="int32", default=403)),
    at_least_one_of("message", "statusCode"),
)

_request_guard = obj(
    optional("response", _rejection, "What a refused caller gets."),
    optional(
        "scope",
        array(enum("Messages", "SystemPrompt", "ToolInput", "ToolOutput"), min_items=1, max_items=4),
    ),
    optional("regex", _regex),
    optional("webhook", _webhook),
    optional("openAIModeration", _moderation),
    optional("bedrockGuardrails", _bedrock),
    optional("googleModelArmor", _model_armor),
    rule(
        "!has(self.scope) || has(self.regex) || has(self.bedrockGuardrails) || "
        "(self.scope.size() == 2 && 'SystemPrompt' in self.scope && 'Messages' in self.scope)",
        "scope: only regex and bedrockGuardrails guards support a non-default scope; other guard kinds always inspect"
        " the default (SystemPrompt + Messages)",
    ),
    exactly_one_of("regex", "webhook", "openAIModeration", "bedrockGuardrails", "googleModelArmor"),
    title="PromptGuardRequest",
)

_response_guard = obj(
    optional("response", _rejection),
    optional("regex", _regex),
    optional("webhook", _webhook),
    optional("bedrockGuardrails", _bedrock),
    optional("googleModelArmor", _model_armor),
    exactly_one_of("regex", "webhook", "bedrockGuardrails", "googleModelArmor"),
    title="PromptGuardResponse",
)

prompt_guard = obj(
    optional("request", array(_request_guard, min_items=1, max_items=8)),
    optional("response", array(_response_guard, min_items=1, max_items=8)),
    optional("streaming", enum("Enabled")),
    at_least_one_of("request", "response"),
    title="AIPromptGuard",
)
