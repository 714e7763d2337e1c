"""Authentication towards a backend: keys, cloud identities, signed tokens, token exchange."""

from tierwall.resources.kinds.agentgateway.authentication import extraction_location, insertion_location
from tierwall.resources.kinds.agentgateway.references import (
    BACKEND_REF_OR_URL,
    secret_key_ref,
    secret_object_ref,
)
from tierwall.resources.kinds.agentgateway.scalars import cel_expression, duration, short_string, url
from tierwall.resources.kinds.gateway_types.references import backend_object_reference
from tierwall.resources.schema import (
    Schema,
    any_value,
    array,
    at_most_one_of,
    enum,
    exactly_one_of,
    extend,
    integer,
    mapping,
    obj,
    optional,
    required,
    rule,
    string,
)

inline_key = string(max_length=2048)

aws_auth = obj(
    optional("secretRef", secret_object_ref),
    optional(
        "assumeRole",
        obj(
            required("roleArn", string(min_length=1, pattern=r"^arn:aws[a-z-]*:iam::[0-9]{12}:role/.+$")),
            optional("sessionName", string(pattern=r"^[\w+=,.@-]{2,64}$")),
            optional("sessionNameExpression", cel_expression),
            optional(
                "tags",
                array(
                    obj(
                        required("key", string(min_length=1, max_length=128)),
                        optional("value", string(max_length=256)),
                        optional("expression", cel_expression),
                        rule(
                            "has(self.value) != has(self.expression)",
                            "exactly one of value or expression must be set",
                        ),
                    ),
                    max_items=50,
                ),
            ),
            at_most_one_of("sessionName", "sessionNameExpression"),
        ),
    ),
    optional("region", short_string),
    optional("serviceName", short_string),
    rule("!(has(self.secretRef) && has(self.assumeRole))", "secretRef and assumeRole are mutually exclusive"),
    title="AwsAuth",
)

gcp_auth = obj(
    optional("type", enum("AccessToken", "IdToken")),
    optional("audience", short_string),
    optional("secretRef", secret_key_ref),
    rule("has(self.audience) ? self.type == 'IdToken' : true", "audience is only valid with IdToken"),
    title="GcpAuth",
)

_azure_auth = obj(
    optional("secretRef", secret_object_ref),
    optional(
        "managedIdentity",
        obj(
            optional("clientId", string()),
            optional("objectId", string()),
            optional("resourceId", string()),
            at_most_one_of("clientId", "objectId", "resourceId"),
        ),
    ),
    optional("workloadIdentity", obj()),
    at_most_one_of("secretRef", "managedIdentity", "workloadIdentity"),
    title="AzureAuth",
)

_signing_algorithm = enum("ES256", "ES384", "PS256", "RS256", "RS384", "RS512")

_jwt_sign = obj(
    required("signingKeyRef", secret_object_ref),
    optional("alg", _signing_algorithm),
    optional("kid", string()),
    optional("claims", mapping(any_value())),
    optional("ttl", duration("1s", "ttl must be at least 1 second")),
    optional("location", insertion_location),
    title="JwtSign",
)

_client_auth = obj(
    required("clientId", string(min_length=1)),
    optional("method", enum("ClientSecretBasic", "ClientSecretPost", "PrivateKeyJwt")),
    optional("secretRef", secret_key_ref),
    optional(
        "privateKeyJwt",
        obj(
            required("signingKeyRef", secret_key_ref),
            required("assertionAudience", string(min_length=1)),
            optional("alg", _signing_algorithm),
            optional("kid", string()),
            optional("certificateRef", secret_key_ref),
            optional("certificateHeader", enum("x5c", "x5t#S256")),
            rule(
                "has(self.certificateRef) == has(self.certificateHeader)",
                "certificateRef and certificateHeader must be set together",
            ),
        ),
    ),
    rule(
        "has(self.privateKeyJwt) == (has(self.method) && self.method == 'PrivateKeyJwt')",
        "privateKeyJwt settings require method PrivateKeyJwt",
    ),
    rule(
        "!has(self.secretRef) || !has(self.method) || self.method != 'PrivateKeyJwt'",
        "secretRef is not valid with method PrivateKeyJwt",
    ),
    rule(
        "has(self.secretRef) || has(self.privateKeyJwt) || (has(self.method) && self.method == 'ClientSecretPost')",
        "clientAuth without secretRef requires method ClientSecretPost or PrivateKeyJwt",
    ),
    title="OAuthClientAuth",
)

_URL_EXCLUDES_PATH = rule("has(self.url) ? !has(self.path) : true", "path may not be set when url is set")
_path = string(pattern="^/")
_scopes = array(string(), min_items=1, max_items=64)

_token_cache = obj(
    optional(
        "inMemory",
        obj(
            optional("defaultTtl", duration("1s", "defaultTtl must be at least 1 second")),
            optional("maxEntries", integer()),
        ),
    ),
)

_token_endpoint = obj(
    optional("backendRef", backend_object_reference),
    optional("url", url),
    optional("path", _path),
    required("clientAuth", _client_auth),
    _URL_EXCLUDES_PATH,
    BACKEND_REF_OR_URL,
    title="OAuthEndpoint",
)

_subject_token = obj(optional("source", extraction_location), optional("tokenType", string()))

_cross_app_access = obj(
    required("identityProvider", _token_endpoint),
    required("resourceAuthorizationServer", _token_endpoint),
    required("audience", short_string),
    optional("accessTokenScopes", array(string(), max_items=64)),
    optional("resources", _scopes),
    optional("scopes", _scopes),
    optional(
        "subjectToken",
        extend(
            _subject_token,
            rule(
                "!has(self.tokenType) || (self.tokenType != 'IdJag' && "
                "self.tokenType != 'urn:ietf:params:oauth:token-type:id-jag')",
                "tokenType IdJag is not supported by crossAppAccess",
            ),
        ),
    ),
    optional("cache", _token_cache),
    title="CrossAppAccess",
)

_token_exchange = obj(
    optional("backendRef", backend_object_reference),
    optional("url", url),
    optional("path", _path),
    optional("grantType", enum("JwtBearer", "TokenExchange")),
    optional("clientAuth", _client_auth),
    optional("subjectToken", _subject_token),
    optional(
        "actorToken",
        obj(
            required("source", extraction_location),
            optional("tokenType", string()),
            optional("mayAct", enum("Required")),
            rule(
                "!has(self.mayAct) || self.mayAct != 'Required' || (has(self.tokenType) && self.tokenType == 'Jwt')",
                "mayAct Required requires tokenType Jwt",
            ),
        ),
    ),
    optional("requestedTokenType", enum("AccessToken", "Jwt", "IdToken", "IdJag")),
    optional("audiences", array(short_string, min_items=1, max_items=64)),
    optional("resources", _scopes),
    optional("scopes", _scopes),
    optional("additionalParams", mapping(cel_expression, max_properties=64)),
    optional("cache", _token_cache),
    optional("location", insertion_location),
    rule(
        "!(has(self.actorToken) && has(self.grantType) && self.grantType == 'JwtBearer')",
        "actorToken is only valid with TokenExchange grantType",
    ),
    rule(
        "!(has(self.requestedTokenType) && has(self.grantType) && self.grantType == 'JwtBearer')",
        "requestedTokenType is only valid with TokenExchange grantType",
    ),
    rule(
        "!has(self.requestedTokenType) || self.requestedTokenType != 'IdJag'",
        "requestedTokenType IdJag is only supported by crossAppAccess",
    ),
    _URL_EXCLUDES_PATH,
    BACKEND_REF_OR_URL,
    title="OAuthTokenExchange",
)

_PRIMARY = {
    "key": inline_key,
    "secretRef": secret_key_ref,
    "passthrough": obj(),
    "aws": aws_auth,
    "azure": _azure_auth,
    "gcp": gcp_auth,
    "oauthTokenExchange": _token_exchange,
    "crossAppAccess": _cross_app_access,
    "jwtSign": _jwt_sign,
}
_credentials = array(
    obj(required("location", insertion_location), required("secretRef", secret_key_ref)), min_items=1, max_items=8
)


def _auth(*without: str) -> Schema:
    """One primary kind of authentication, further credentials, or both."""
    kinds = {name: schema for name, schema in _PRIMARY.items() if name not in without}
    return obj(
        *(optional(name, schema) for name, schema in kinds.items()),
        optional("credentials", _credentials),
        optional("location", insertion_location),
        rule(
            " || ".join(f"has(self.{name})" for name in ("credentials", *kinds)),
            f"must specify credentials, or at most one of {'/'.join(kinds)}"
            " (credentials may be combined with a primary auth kind)",
        ),
        rule(
            "has(self.location) ? has(self.key) || has(self.secretRef) || has(self.passthrough) : true",
            "location may only be set for key, secretRef, or passthrough auth",
        ),
        at_most_one_of(*kinds),
        title="BackendAuth",
    )


backend_auth = _auth()
model_auth = _auth("crossAppAccess", "jwtSign")

# The narrower forms that guardrail services take.
bedrock_auth = obj(
    optional("key", inline_key),
    optional("secretRef", secret_key_ref),
    optional("aws", aws_auth),
    optional("location", insertion_location),
    rule(
        "has(self.location) ? has(self.key) || has(self.secretRef) : true",
        "location may only be set for key or secretRef auth",
    ),
    exactly_one_of("key", "secretRef", "aws"),
)

google_auth = obj(optional("gcp", gcp_auth), exactly_one_of("gcp"))

openai_auth = obj(
    optional("key", inline_key),
    optional("secretRef", secret_key_ref),
    optional("location", insertion_location),
    exactly_one_of("key", "secretRef"),
)
