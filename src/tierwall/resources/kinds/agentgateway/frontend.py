"""The frontend section: how a Gateway takes incoming connections, and what it records of them."""

from tierwall.resources.kinds.agentgateway.authorization import authorization
from tierwall.resources.kinds.agentgateway.connection import (
    alpn_protocols,
    keepalive,
    key_exchange_groups,
)
from tierwall.resources.kinds.agentgateway.references import BACKEND_REF_OR_URL, WITH_PATH
from tierwall.resources.kinds.agentgateway.scalars import (
    byte_size,
    cel_expression,
    duration,
    long_string,
    short_string,
    tiny_string,
    url,
)
from tierwall.resources.kinds.gateway_types.references import backend_object_reference
from tierwall.resources.schema import (
    Property,
    Rule,
    array,
    at_least_one_of,
    enum,
    integer,
    obj,
    optional,
    required,
    rule,
)

_attribute = obj(required("name", short_string), required("expression", cel_expression))

_attributes = obj(
    optional("remove", array(tiny_string, min_items=1, max_items=32)),
    optional("add", array(_attribute, min_items=1)),
    at_least_one_of("add", "remove"),
    title="LogTracingAttributes",
)

# What access logs and traces that are sent over OTLP have in common.
_otlp: tuple[Property | Rule, ...] = (
    optional("backendRef", backend_object_reference),
    optional("url", url),
    optional("protocol", enum("GRPC", "HTTP", default="GRPC")),
    optional("path", long_string),
    optional("filter", cel_expression),
    optional("attributes", _attributes),
    rule("!has(self.path) || !has(self.protocol) || self.protocol == 'HTTP'", "path is only valid with protocol HTTP"),
    rule("!has(self.path) || self.path.startsWith('/')", "path must start with /"),
    rule(
        f"!has(self.url) || !self.url.matches('{WITH_PATH}') || (has(self.protocol) && self.protocol == 'HTTP')",
        "url path is only valid with protocol HTTP",
    ),
    BACKEND_REF_OR_URL,
)

access_log = obj(
    optional("filter", cel_expression, "Only requests for which this is true are logged."),
    optional("attributes", _attributes),
    optional("otlp", obj(*_otlp)),
    title="AccessLog",
)

tracing = obj(
    *_otlp,
    optional("randomSampling", cel_expression),
    optional("clientSampling", cel_expression),
    optional("resources", array(_attribute)),
    title="Tracing",
)


def _at_least_a_second(name: str) -> Property:
    return optional(name, duration("1s", f"{name} must be at least 1 second"))


_http = obj(
    optional("http1HeaderCase", enum("Lowercase", "Preserve")),
    _at_least_a_second("http1IdleTimeout"),
    optional("http1MaxHeaders", integer(minimum=1, maximum=4096, format="int32")),
    optional("http2ConnectionWindowSize", byte_size()),
    optional(
        "http2FrameSize",
        byte_size(
            rule(
                "!quantity(string(self)).isLessThan(quantity('16384'))",
                "http2FrameSize must be at least 16384 bytes",
            ),
            rule(
                "!quantity(string(self)).isGreaterThan(quantity('1677215'))",
                "http2FrameSize must be at most 1677215 bytes",
            ),
        ),
    ),
    _at_least_a_second("http2KeepaliveInterval"),
    _at_least_a_second("http2KeepaliveTimeout"),
    optional("http2MaxHeaderSize", byte_size()),
    optional("http2WindowSize", byte_size()),
    optional("maxBufferSize", byte_size()),
    _at_least_a_second("maxConnectionDuration"),
    at_least_one_of(
        "http1HeaderCase",
        "http1IdleTimeout",
        "http1MaxHeaders",
        "http2ConnectionWindowSize",
        "http2FrameSize",
        "http2KeepaliveInterval",
        "http2KeepaliveTimeout",
        "http2MaxHeaderSize",
        "http2WindowSize",
        "maxBufferSize",
        "maxConnectionDuration",
    ),
    title="FrontendHTTP",
)

_tls_version = enum("1.2", "1.3")

_tls = obj(
    optional("alpnProtocols", alpn_protocols),
    optional(
        "cipherSuites",
        array(
            enum(
                "TLS13_AES_128_GCM_SHA256",
                "TLS13_AES_256_GCM_SHA384",
                "TLS13_CHACHA20_POLY1305_SHA256",
                "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
                "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
                "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
                "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
                "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
                "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            )
        ),
    ),
    optional("handshakeTimeout", duration("100ms", "handshakeTimeout must be at least 100ms")),
    optional("keyExchangeGroups", key_exchange_groups),
    optional("maxProtocolVersion", _tls_version),
    optional("minProtocolVersion", _tls_version),
    at_least_one_of(
        "alpnProtocols",
        "cipherSuites",
        "handshakeTimeout",
        "keyExchangeGroups",
        "maxProtocolVersion",
        "minProtocolVersion",
    ),
    title="FrontendTLS",
)

_metrics = obj(
    required(
        "attributes",
        obj(
            optional("add", array(_attribute, min_items=1, max_items=16, list_type="map", keys=("name",))),
            at_least_one_of("add"),
        ),
    ),
    title="MetricLabels",
)

frontend_section = obj(
    optional("tcp", obj(optional("keepalive", keepalive), at_least_one_of("keepalive"))),
    optional("networkAuthorization", authorization, "Decides on connections, before any protocol is read."),
    optional("tls", _tls),
    optional("http", _http),
    optional(
        "proxyProtocol",
        obj(
            optional("mode", enum("Optional", "Strict", default="Strict")),
            optional("version", enum("All", "V1", "V2", default="V2")),
        ),
    ),
    optional("connect", obj(required("mode", enum("Deny", "Route", "Tunnel")))),
    optional("accessLog", access_log),
    optional("tracing", tracing),
    optional("metrics", _metrics),
    at_least_one_of(
        "accessLog",
        "connect",
        "http",
        "metrics",
        "networkAuthorization",
        "proxyProtocol",
        "tcp",
        "tls",
        "tracing",
    ),
    title="Frontend",
)
