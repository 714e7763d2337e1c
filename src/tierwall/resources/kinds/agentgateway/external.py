"""External services that see requests: authorization (extAuth) and processing (extProc), flat or conditional."""

from tierwall.resources.kinds.agentgateway.conditional import conditional, excludes
from tierwall.resources.kinds.agentgateway.references import WITH_PATH, url_without_path
from tierwall.resources.kinds.agentgateway.scalars import byte_size, cel_expression, failure_mode, short_string, url
from tierwall.resources.kinds.gateway_types.references import backend_object_reference
from tierwall.resources.schema import (
    Property,
    Rule,
    array,
    boolean,
    enum,
    integer,
    mapping,
    obj,
    optional,
    required,
    rule,
    string,
)

_BACKEND_REF_OR_URL = "[has(self.backendRef),has(self.url)].filter(x,x==true).size() == 1"
_GRPC_OR_HTTP = "[has(self.grpc),has(self.http)].filter(x,x==true).size() == 1"
_ONE_PROTOCOL = "exactly one of the fields in [grpc http] must be set"
_UNLESS_CONDITIONAL = rule(
    f"has(self.conditional) ? (!has(self.backendRef) && !has(self.url)) : {_BACKEND_REF_OR_URL}",
    "exactly one of backendRef or url must be set unless conditional is set",
)
_ALWAYS = rule(_BACKEND_REF_OR_URL, "exactly one of backendRef or url is required")

_expressions = mapping(cel_expression, max_properties=64)
_names = array(short_string, max_items=64)

_ext_auth: tuple[Property | Rule, ...] = (
    optional("backendRef", backend_object_reference),
    optional("url", url),
    optional("failureMode", failure_mode),
    optional(
        "grpc",
        obj(
            optional("contextExtensions", mapping(string(), max_properties=64)),
            optional("requestMetadata", _expressions),
        ),
    ),
    optional(
        "http",
        obj(
            optional("path", cel_expression),
            optional("redirect", cel_expression),
            optional("body", cel_expression),
            optional("allowedRequestHeaders", _names),
            optional("addRequestHeaders", _expressions),
            optional("allowedResponseHeaders", _names),
            optional("responseMetadata", _expressions),
        ),
    ),
    optional("forwardBody", obj(required("maxSize", byte_size()))),
    optional(
        "cache",
        obj(
            required("key", array(cel_expression, min_items=1, max_items=16)),
            required("ttl", cel_expression),
            optional("maxEntries", integer(minimum=1)),
        ),
    ),
    rule(
        "!(has(self.forwardBody) && has(self.http) && has(self.http.body))",
        "forwardBody cannot be used with http.body",
    ),
    rule(f"!has(self.url) || !self.url.matches('{WITH_PATH}') || has(self.http)", "url path is only valid with http"),
    rule(
        f"!has(self.url) || !self.url.matches('{WITH_PATH}') || !has(self.http) || !has(self.http.path)",
        "http.path may not be set when url includes a path",
    ),
)

# A backend's extAuth has no conditional form, and does not insist on a protocol.
backend_ext_auth = obj(
    *_ext_auth, rule(_BACKEND_REF_OR_URL, "exactly one of backendRef or url must be set"), title="ExtAuth"
)

ext_auth = obj(
    _UNLESS_CONDITIONAL,
    rule(f"has(self.conditional) || {_GRPC_OR_HTTP}", _ONE_PROTOCOL),
    *_ext_auth,
    conditional(obj(_ALWAYS, rule(_GRPC_OR_HTTP, _ONE_PROTOCOL), *_ext_auth)),
    excludes("backendRef", "cache", "failureMode", "forwardBody", "grpc", "http", "url"),
    title="ExtAuthOrConditional",
)

_body_mode = enum("Buffered", "BufferedPartial", "FullDuplexStreamed", "None", default="FullDuplexStreamed")
_send_mode = enum("Send", "Skip", default="Send")

_ext_proc: tuple[Property | Rule, ...] = (
    optional("backendRef", backend_object_reference),
    optional("url", url),
    optional("failureMode", failure_mode),
    optional("metadataContext", mapping(mapping(string()), max_properties=64)),
    optional("requestAttributes", _expressions),
    optional("responseAttributes", _expressions),
    optional(
        "processingOptions",
        obj(
            optional("requestBodyMode", _body_mode),
            optional("responseBodyMode", _body_mode),
            optional("requestHeaderMode", _send_mode),
            optional("responseHeaderMode", _send_mode),
            optional("requestTrailerMode", _send_mode),
            optional("responseTrailerMode", _send_mode),
            optional("allowModeOverride", boolean(default=False)),
        ),
    ),
    url_without_path(),
)

ext_proc = obj(
    _UNLESS_CONDITIONAL,
    *_ext_proc,
    conditional(obj(_ALWAYS, *_ext_proc)),
    excludes(
        "backendRef",
        "failureMode",
        "metadataContext",
        "processingOptions",
        "requestAttributes",
        "responseAttributes",
        "url",
    ),
    title="ExtProcOrConditional",
)
