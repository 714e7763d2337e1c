"""Settings for MCP backends: who may call, which items they may see and use, and guardrails on the way."""

from tierwall.resources.kinds.agentgateway.authentication import (
    authentication_mode,
    identity_provider,
    remote_jwks,
)
from tierwall.resources.kinds.agentgateway.authorization import authorization
from tierwall.resources.kinds.agentgateway.references import BACKEND_REF_OR_URL, secret_key_ref, url_without_path
from tierwall.resources.kinds.agentgateway.scalars import (
    any_header_name,
    cel_expression,
    failure_mode,
    short_string,
    url,
)
from tierwall.resources.kinds.gateway_types.references import backend_object_reference
from tierwall.resources.schema import (
    any_value,
    array,
    at_least_one_of,
    enum,
    exactly_one_of,
    mapping,
    obj,
    optional,
    required,
    rule,
    string,
)

_authentication = obj(
    optional("mode", authentication_mode),
    optional("issuer", short_string),
    optional("audiences", array(string(), min_items=1, max_items=64)),
    required("jwks", remote_jwks),
    optional("provider", identity_provider),
    optional("clientId", string()),
    optional("clientSecretRef", secret_key_ref),
    optional("resourceMetadata", mapping(any_value())),
    title="MCPAuthentication",
)

_header_names = array(any_header_name, max_items=64, list_type="set")

_processor = obj(
    required(
        "methods",
        mapping(
            enum("Full", "Off", "Request", "Response"),
            rule(
                "self.all(k, !k.contains('*') || (k.indexOf('*') == k.lastIndexOf('*') && "
                "(k.indexOf('*') == 0 || k.indexOf('*') == size(k) - 1)))",
                "method wildcards must be '*', a prefix like 'tools/*', or a suffix like '*/list'",
            ),
            min_properties=1,
            max_properties=64,
        ),
        "From an MCP method to when it is sent to the processor.",
    ),
    optional(
        "remote",
        obj(
            optional("backendRef", backend_object_reference),
            optional("url", url),
            optional("failureMode", failure_mode),
            optional("metadata", mapping(cel_expression, max_properties=64)),
            optional("allowedRequestHeaders", _header_names),
            optional("disallowedRequestHeaders", _header_names),
            url_without_path(),
            BACKEND_REF_OR_URL,
        ),
    ),
    exactly_one_of("remote"),
    title="MCPGuardrailsProcessor",
)

mcp = obj(
    optional("authentication", _authentication),
    optional("authorization", authorization, "Decides per tool, prompt, resource or task; lists are filtered by it."),
    optional("guardrails", obj(required("processors", array(_processor, min_items=1, max_items=16)))),
    at_least_one_of("authentication", "authorization", "guardrails"),
    title="BackendMCP",
)
