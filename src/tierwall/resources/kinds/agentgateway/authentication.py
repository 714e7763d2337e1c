"""Authentication of callers: API keys, basic credentials, JSON Web Tokens; and where each is read from."""

from tierwall.resources.kinds.agentgateway.references import (
    BACKEND_REF_OR_URL,
    secret_key_ref,
    secret_object_ref,
)
from tierwall.resources.kinds.agentgateway.scalars import cel_expression, duration, long_string, short_string, url
from tierwall.resources.kinds.gateway_types.names import header_name
from tierwall.resources.kinds.gateway_types.references import backend_object_reference
from tierwall.resources.schema import (
    any_value,
    array,
    enum,
    exactly_one_of,
    mapping,
    obj,
    optional,
    required,
    rule,
    string,
)

_named = obj(required("name", short_string))
_LOCATIONS = (
    optional("header", obj(required("name", header_name), optional("prefix", short_string))),
    optional("queryParameter", _named),
    optional("cookie", _named),
)

insertion_location = obj(
    *_LOCATIONS, exactly_one_of("header", "queryParameter", "cookie"), title="AuthorizationLocation"
)

extraction_location = obj(
    *_LOCATIONS,
    optional("expression", cel_expression),
    exactly_one_of("header", "queryParameter", "cookie", "expression"),
    title="AuthorizationExtractionLocation",
)

_labels = obj(required("matchLabels", mapping(string())))

authentication_mode = enum("Optional", "Permissive", "Strict", default="Strict")
identity_provider = enum("Auth0", "Authentik", "Descope", "Entra", "Keycloak", "Okta")

api_key_authentication = obj(
    optional("mode", authentication_mode),
    optional("secretRef", secret_object_ref),
    optional("secretSelector", _labels),
    optional("configMapSelector", _labels),
    optional("location", extraction_location),
    exactly_one_of("secretRef", "secretSelector", "configMapSelector"),
    title="APIKeyAuthentication",
)

basic_authentication = obj(
    optional("mode", enum("Optional", "Strict", default="Strict")),
    optional("realm", string()),
    optional("users", array(string(), min_items=1, max_items=256)),
    optional("secretRef", secret_key_ref),
    optional("location", extraction_location),
    exactly_one_of("users", "secretRef"),
    title="BasicAuthentication",
)

remote_jwks = obj(
    optional("backendRef", backend_object_reference),
    optional("url", url),
    optional("jwksPath", long_string),
    optional("cacheDuration", duration("5m", "cacheDuration must be at least 5m.", default="5m")),
    rule("has(self.backendRef) ? has(self.jwksPath) : true", "jwksPath is required when backendRef is set"),
    rule("has(self.url) ? !has(self.jwksPath) : true", "jwksPath may not be set when url is set"),
    BACKEND_REF_OR_URL,
    title="RemoteJWKS",
)

_provider = obj(
    required("issuer", short_string),
    optional("audiences", array(string(), min_items=1, max_items=64)),
    required(
        "jwks",
        obj(
            optional("remote", remote_jwks),
            optional("inline", string(min_length=2, max_length=65536)),
            exactly_one_of("remote", "inline"),
        ),
    ),
    title="JWTProvider",
)

jwt_authentication = obj(
    optional("mode", authentication_mode),
    required("providers", array(_provider, min_items=1, max_items=64)),
    optional("location", extraction_location),
    optional(
        "mcp",
        obj(
            optional("clientId", string()),
            optional("provider", identity_provider),
            optional("resourceMetadata", mapping(any_value())),
        ),
        "Serves the MCP authorization metadata on top of the token check.",
    ),
    rule("!has(self.mcp) || size(self.providers) == 1", "jwtAuthentication.mcp requires exactly one provider"),
    rule("!has(self.mcp) || !has(self.mode) || self.mode == 'Strict'", "jwtAuthentication.mcp requires mode Strict"),
    title="JWTAuthentication",
)
