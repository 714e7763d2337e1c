"""Values of every field of an AgentgatewayPolicy that Envoy obeys, and changes of each part of them.

A field has one sample or several, because some parts exclude others. A sample is a value, and by the path of a part
(through lists to their first item) what it is changed to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.worlds.gateway_settings import Object, policy, secret, service

_ASKED: Object = {"backendRef": {"name": "guard", "port": 80}}
# The parts of a reference to a service.
_OTHER_SERVICE = {"name": "other", "namespace": "away", "port": 81, "group": "agentgateway.dev", "kind": "X"}
_KEYS: Object = {"keys": [{"kty": "oct", "k": "AA"}]}
_SECRET_REF = {"name": "others", "key": "b"}
_DIGEST = "{SHA}" + "A" * 27 + "="


class Sample(NamedTuple):
    """A value of a field, and what parts of it are changed to."""

    field: str
    value: Any
    changes: Mapping[str, Any]


def _under(path: str, changes: Mapping[str, Any]) -> Object:
    return {f"{path}.{part}": value for part, value in changes.items()}


def _service(path: str = "") -> Object:
    """Another service in place of the one at a path."""
    prefix = f"{path}." if path else ""
    return {f"{prefix}backendRef.{part}": value for part, value in _OTHER_SERVICE.items() if part not in _KIND}


_KIND = ("group", "kind")
_SIDE: Object = {
    "set": [{"name": "x", "value": "'1'"}],
    "add": [{"name": "x", "value": "'1'"}],
    "remove": ["x"],
    "body": "'x'",
    "metadata": {"a": "'b'"},
}
_HEADERS: Object = {"set": [{"name": "x", "value": "1"}], "add": [{"name": "x", "value": "1"}], "remove": ["x"]}
_LOCATIONS: Object = {
    "location.queryParameter.name": "q",
    "location.cookie.name": "c",
    "location.expression": "request.path",
}
_HEADER_LOCATION = {"location.header.name": "y", "location.header.prefix": "P "}
_ATTRIBUTES: Object = {
    "attributes.add": [{"name": "n", "expression": "request.path"}],
    "attributes.remove": ["url.path"],
}
_KEEPALIVE = {"keepalive.interval": "7s", "keepalive.retries": 3, "keepalive.time": "9s"}
_RULES: Object = {"action": "Deny", "policy.matchExpressions": ["request.path == '/b'"]}
_COUNTED: Object = {
    **_ASKED,
    "domain": "d",
    "descriptors": [{"entries": [{"name": "a", "expression": "request.path"}]}],
}
_ASK_HTTP: Object = {
    "failureMode": "FailOpen",
    "http.path": "'/q'",
    "http.redirect": "'/x'",
    "http.body": "'x'",
    "http.allowedRequestHeaders": ["x"],
    "http.addRequestHeaders": {"x": "'y'"},
    "http.allowedResponseHeaders": ["x"],
    "http.responseMetadata": {"a": "'b'"},
    "forwardBody.maxSize": 100,
    "cache": {"key": ["request.path"], "ttl": "1s", "maxEntries": 4},
    **_service(),
}
_ASK_GRPC: Object = {"grpc.contextExtensions": {"a": "b"}, "grpc.requestMetadata": {"a": "'b'"}}
_TRANSFORMED: Object = {side: {"set": [{"name": "y", "value": "'1'"}]} for side in ("request", "response")}
_TOKENS: Object = {"providers": [{"issuer": "i", "jwks": {"inline": str(_KEYS).replace("'", '"')}}]}
_X_HEADER: Object = {"location": {"header": {"name": "x", "prefix": "Bearer "}}}
_NAMED_SECRET: Object = {"secretRef": {"name": "keys", "key": "a"}}


def _asking(field: str) -> tuple[Sample, ...]:
    return (
        Sample(field, {**_ASKED, "http": {"path": "'/p'"}}, _ASK_HTTP),
        Sample(field, {**_ASKED, "grpc": {}}, _ASK_GRPC),
        Sample(field, {"url": "http://s.example:81", "grpc": {}}, {"url": "http://t.example:81"}),
    )


def _transforming(field: str) -> Sample:
    return Sample(field, _TRANSFORMED, {**_under("request", _SIDE), **_under("response", _SIDE)})


SAMPLES: tuple[Sample, ...] = (
    Sample("frontend.tcp", {"keepalive": {"time": "5s"}}, _KEEPALIVE),
    Sample(
        "frontend.networkAuthorization",
        {"policy": {"matchExpressions": ["source.address == '192.0.2.1'"]}},
        {"action": "Deny", "policy.matchExpressions": ["source.address == '192.0.2.2'"]},
    ),
    Sample(
        "frontend.tls",
        {"alpnProtocols": ["h2"]},
        {
            "alpnProtocols": ["http/1.1"],
            "cipherSuites": ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"],
            "handshakeTimeout": "3s",
            "keyExchangeGroups": ["P-256"],
            "maxProtocolVersion": "1.2",
            "minProtocolVersion": "1.3",
        },
    ),
    Sample(
        "frontend.http",
        {"http1MaxHeaders": 9},
        {
            "http1HeaderCase": "Preserve",
            "http1IdleTimeout": "9s",
            "http1MaxHeaders": 8,
            "http2ConnectionWindowSize": 99_999,
            "http2FrameSize": 17_000,
            "http2KeepaliveInterval": "5s",
            "http2KeepaliveTimeout": "6s",
            "http2MaxHeaderSize": 5000,
            "http2WindowSize": 99_999,
            "maxBufferSize": 1000,
            "maxConnectionDuration": "9s",
        },
    ),
    Sample("frontend.proxyProtocol", {"mode": "Strict"}, {"mode": "Optional", "version": "V1"}),
    Sample("frontend.connect", {"mode": "Deny"}, {"mode": "Route"}),
    Sample(
        "frontend.accessLog",
        {"otlp": _ASKED},
        {
            "filter": "request.method == 'GET'",
            **_ATTRIBUTES,
            **_service("otlp"),
            "otlp.filter": "request.method == 'GET'",
            **_under("otlp", _ATTRIBUTES),
            "otlp.protocol": "HTTP",
        },
    ),
    Sample(
        "frontend.accessLog",
        {"attributes": {"remove": ["a"]}},
        {"filter": "request.method == 'GET'", **_ATTRIBUTES},
    ),
    Sample("frontend.accessLog", {"otlp": {"url": "http://a.example"}}, {"otlp.url": "http://b.example"}),
    Sample("frontend.accessLog", {"otlp": {**_ASKED, "protocol": "HTTP"}}, {"otlp.path": "/x"}),
    Sample(
        "frontend.tracing",
        _ASKED,
        {
            **_ATTRIBUTES,
            **_service(),
            "protocol": "HTTP",
            "filter": "true",
            "randomSampling": "0.5",
            "clientSampling": "false",
            "resources": [{"name": "a", "expression": "'b'"}],
        },
    ),
    Sample("frontend.tracing", {"url": "http://a.example"}, {"url": "http://b.example"}),
    Sample("frontend.tracing", {**_ASKED, "protocol": "HTTP"}, {"path": "/x"}),
    _transforming("traffic.transformation"),
    Sample(
        "traffic.extProc",
        _ASKED,
        {
            **_service(),
            "failureMode": "FailOpen",
            "metadataContext": {"a": {"b": "'c'"}},
            "requestAttributes": {"a": "request.path"},
            "responseAttributes": {"a": "request.path"},
            "processingOptions.requestBodyMode": "Buffered",
            "processingOptions.responseBodyMode": "Buffered",
            "processingOptions.requestHeaderMode": "Skip",
            "processingOptions.responseHeaderMode": "Skip",
            "processingOptions.requestTrailerMode": "Skip",
            "processingOptions.responseTrailerMode": "Skip",
            "processingOptions.allowModeOverride": True,
        },
    ),
    Sample("traffic.extProc", {"url": "http://s.example:81"}, {"url": "http://t.example:81"}),
    *_asking("traffic.extAuth"),
    Sample(
        "traffic.rateLimit.local",
        [{"requests": 9, "unit": "Seconds"}],
        {"requests": 8, "unit": "Hours", "burst": 3},
    ),
    Sample("traffic.rateLimit.local", [{"tokens": 9, "unit": "Seconds"}], {"tokens": 8}),
    Sample(
        "traffic.rateLimit.global",
        _COUNTED,
        {
            **_service(),
            "failureMode": "FailOpen",
            "domain": "e",
            "descriptors.entries.name": "b",
            "descriptors.entries.expression": "request.method",
            "descriptors.unit": "Tokens",
            "descriptors.cost": "2",
            "descriptors.limitOverride": "{'requestsPerUnit': 1, 'unit': 'MINUTE'}",
        },
    ),
    Sample(
        "traffic.rateLimit.global",
        {**{key: value for key, value in _COUNTED.items() if key != "backendRef"}, "url": "http://s.example:81"},
        {"url": "http://t.example:81"},
    ),
    Sample(
        "traffic.cors",
        {"allowOrigins": ["https://a.example"]},
        {
            "allowOrigins": ["https://b.example"],
            "allowCredentials": True,
            "allowMethods": ["PUT"],
            "allowHeaders": ["x"],
            "exposeHeaders": ["x"],
            "maxAge": 6,
        },
    ),
    Sample("traffic.csrf", {}, {"additionalOrigins": ["https://a.example"]}),
    Sample("traffic.headerModifiers.request", {"set": [{"name": "z", "value": "1"}]}, _HEADERS),
    Sample("traffic.headerModifiers.response", {"set": [{"name": "z", "value": "1"}]}, _HEADERS),
    Sample("traffic.hostRewrite", {"mode": "Auto"}, {"mode": "None"}),
    Sample("traffic.timeouts", {"request": "5s"}, {"request": "6s"}),
    Sample(
        "traffic.retry",
        {"attempts": 2},
        {"attempts": 3, "backoff": "1s", "codes": [503], "condition": "true", "precondition": "true"},
    ),
    Sample("traffic.delay", {"duration": "1s"}, {"duration": "2s"}),
    Sample("traffic.authorization", {"policy": {"matchExpressions": ["request.path == '/a'"]}}, _RULES),
    Sample(
        "traffic.jwtAuthentication",
        {**_TOKENS, **_X_HEADER},
        {
            "mode": "Permissive",
            "providers.issuer": "j",
            "providers.audiences": ["a"],
            "providers.jwks.inline": '{"keys": [{"kty": "RSA"}]}',
            **_HEADER_LOCATION,
            "mcp": {"provider": "Keycloak", "clientId": "c", "resourceMetadata": {"a": "b"}},
        },
    ),
    Sample("traffic.jwtAuthentication", _TOKENS, _LOCATIONS),
    Sample(
        "traffic.jwtAuthentication",
        {"providers": [{"issuer": "i", "jwks": {"remote": {**_ASKED, "jwksPath": "/k"}}}]},
        _under("providers.jwks.remote", {**_service(), "jwksPath": "/l", "cacheDuration": "7m"}),
    ),
    Sample(
        "traffic.jwtAuthentication",
        {"providers": [{"issuer": "i", "jwks": {"remote": {"url": "http://a.example/k"}}}]},
        {"providers.jwks.remote.url": "http://b.example/k"},
    ),
    Sample(
        "traffic.basicAuthentication",
        {"users": [f"a:{_DIGEST}"]},
        {
            "mode": "Optional",
            "realm": "r",
            "users": [f"b:{_DIGEST}"],
            "location.header": {"name": "y", "prefix": "P "},
            **_LOCATIONS,
        },
    ),
    Sample("traffic.basicAuthentication", {"secretRef": {"name": "keys"}}, _under("secretRef", _SECRET_REF)),
    Sample(
        "traffic.apiKeyAuthentication",
        {"secretRef": {"name": "keys"}, **_X_HEADER},
        {"mode": "Permissive", "secretRef.name": "others", **_HEADER_LOCATION},
    ),
    Sample("traffic.apiKeyAuthentication", {"secretRef": {"name": "keys"}}, {"mode": "Optional", **_LOCATIONS}),
    Sample(
        "traffic.apiKeyAuthentication",
        {"secretSelector": {"matchLabels": {"a": "b"}}},
        {"secretSelector.matchLabels": {"a": "c"}},
    ),
    Sample(
        "traffic.apiKeyAuthentication",
        {"configMapSelector": {"matchLabels": {"a": "b"}}},
        {"configMapSelector.matchLabels": {"a": "c"}},
    ),
    Sample(
        "traffic.directResponse",
        {"status": 200},
        {"status": 201, "body": "x", "bodyExpression": "'y'", "headers": [{"name": "a", "value": "'b'"}]},
    ),
    Sample(
        "traffic.buffer",
        {"request": {"maxBytes": 1000}},
        {
            "request.maxBytes": 2000,
            "request.failureMode": "FailOpen",
            "response.maxBytes": 100,
            "response.failureMode": "FailOpen",
        },
    ),
    Sample("backend.tcp", {"connectTimeout": "6s"}, {"connectTimeout": "7s", **_KEEPALIVE}),
    Sample(
        "backend.tls",
        {"sni": "a.example"},
        {
            "alpnProtocols": ["h2"],
            "caCertificateRefs": [{"name": "nowhere"}],
            "certificateSource": "SPIFFE",
            "insecureSkipVerify": "All",
            "keyExchangeGroups": ["P-256"],
            "mtlsCertificateRef": [{"name": "nowhere"}],
            "sni": "b.example",
            "verifySubjectAltNames": ["c.example"],
        },
    ),
    Sample("backend.http", {"version": "HTTP1"}, {"version": "HTTP2", "requestTimeout": "3s"}),
    Sample(
        "backend.auth",
        {"key": "k", **_X_HEADER},
        {
            "key": "l",
            **_HEADER_LOCATION,
            "credentials": [{"location": {"header": {"name": "z"}}, "secretRef": {"name": "keys", "key": "a"}}],
        },
    ),
    Sample("backend.auth", {"key": "k"}, {key: _LOCATIONS[key] for key in list(_LOCATIONS)[:2]}),
    Sample("backend.auth", _NAMED_SECRET, _under("secretRef", _SECRET_REF)),
    *(
        Sample(
            "backend.auth",
            {"credentials": [{"location": {place: {"name": "z"}}, **_NAMED_SECRET}]},
            {f"credentials.location.{place}.name": "w"},
        )
        for place in ("header", "queryParameter", "cookie")
    ),
    Sample(
        "backend.auth",
        {"credentials": [{"location": {"header": {"name": "z"}}, **_NAMED_SECRET}]},
        {
            "credentials.location.header.prefix": "P ",
            **_under("credentials.secretRef", _SECRET_REF),
        },
    ),
    Sample("backend.ai.defaults", [{"field": "a", "value": 1}], {"field": "b", "value": 2}),
    Sample("backend.ai.overrides", [{"field": "a", "value": 1}], {"field": "b", "value": 2}),
    Sample("backend.ai.modelAliases", {"a": "b"}, {"c*": "d"}),
    Sample("backend.ai.routes", {"/a": "Completions"}, {"/b": "Embeddings", "/a": "Passthrough"}),
    Sample(
        "backend.mcp.authentication",
        {"issuer": "i", "jwks": {**_ASKED, "jwksPath": "/k"}},
        {
            **_under("jwks", {**_service(), "jwksPath": "/l", "cacheDuration": "7m"}),
            "mode": "Permissive",
            "issuer": "j",
            "audiences": ["a"],
            "provider": "Keycloak",
            "clientId": "c",
            "clientSecretRef": {"name": "keys"},
            "resourceMetadata": {"a": "b"},
        },
    ),
    Sample(
        "backend.mcp.authentication",
        {"issuer": "i", "jwks": {"url": "http://a.example/k"}},
        {"jwks.url": "http://b.example/k"},
    ),
    Sample(
        "backend.mcp.authorization",
        {"policy": {"matchExpressions": ["mcp.tool.name == 'a'"]}},
        {"action": "Deny", "policy.matchExpressions": ["mcp.tool.name == 'b'"]},
    ),
    _transforming("backend.transformation"),
    *_asking("backend.extAuth"),
)
# Objects that the samples name.
NAMED: tuple[Object, ...] = (
    service("guard"),
    service("other"),
    {**(away := service("guard", 80)), "metadata": {**away["metadata"], "namespace": "away"}},
    secret("keys", None, a="k1", b="k2", **{".htaccess": f"a:{_DIGEST}"}),
    secret("others", None, a="k3", b=f"b:{_DIGEST}", **{".htaccess": f"c:{_DIGEST}"}),
)


def changed(value: Any, path: str, new: Any) -> Any:
    """Return a value with another part at a path."""
    key, _, rest = path.partition(".")
    if isinstance(value, list):
        return [changed(value[0], path, new), *value[1:]]
    return {**value, key: changed(value.get(key, {}), rest, new) if rest else new}


def setting(name: str, target: str, field: str, value: Any) -> Object:
    """A policy that sets a field of a target."""
    section, *keys = field.split(".")
    for key in reversed(keys):
        value = {key: value}
    return policy(name, target, **{section: value})
