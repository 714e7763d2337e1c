"""The traffic section: what happens to requests on their way, before or after a route is chosen."""

from tierwall.resources.kinds.agentgateway.authentication import (
    api_key_authentication,
    basic_authentication,
    jwt_authentication,
)
from tierwall.resources.kinds.agentgateway.authorization import authorization
from tierwall.resources.kinds.agentgateway.conditional import conditional, excludes
from tierwall.resources.kinds.agentgateway.external import ext_auth, ext_proc
from tierwall.resources.kinds.agentgateway.rate_limit import rate_limit
from tierwall.resources.kinds.agentgateway.scalars import (
    byte_size,
    cel_expression,
    duration,
    failure_mode,
    short_string,
)
from tierwall.resources.kinds.agentgateway.transformation import transform, transformation
from tierwall.resources.kinds.gateway_types.filters import cors, header_modifier
from tierwall.resources.kinds.gateway_types.names import duration as plain_duration
from tierwall.resources.kinds.gateway_types.names import header_name
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
    string,
)

_PREROUTING = (
    "buffer",
    "csrf",
    "delay",
    "directResponse",
    "headerModifiers",
    "hostRewrite",
    "rateLimit",
    "retry",
    "timeouts",
)

_body = obj(optional("maxBytes", byte_size()), optional("failureMode", failure_mode))

_header_modifier = header_modifier(string(min_length=1, max_length=4096))
header_modifiers = obj(
    optional("request", _header_modifier),
    optional("response", _header_modifier),
    at_least_one_of("request", "response"),
    title="HeaderModifiers",
)

_direct_response: tuple[Property | Rule, ...] = (
    optional("status", integer(minimum=200, maximum=599, format="int32")),
    optional("body", string(min_length=1, max_length=4096)),
    optional("bodyExpression", cel_expression),
    optional(
        "headers",
        array(
            obj(required("name", header_name), required("value", cel_expression)),
            min_items=1,
            max_items=16,
            list_type="map",
            keys=("name",),
        ),
    ),
    rule("!(has(self.body) && has(self.bodyExpression))", "body and bodyExpression may not both be set"),
)

_DIRECT_RESPONSE = obj(
    *_direct_response,
    conditional(obj(rule("has(self.status)", "status is required"), *_direct_response)),
    excludes("body", "bodyExpression", "headers", "status"),
    rule("has(self.conditional) ? true : has(self.status)", "status: Required value"),
    title="DirectResponseOrConditional",
)

_TRANSFORMATION = obj(
    optional("request", transform),
    optional("response", transform),
    conditional(transformation),
    at_least_one_of("conditional", "request", "response"),
    excludes("request", "response"),
    title="TransformationOrConditional",
)

_RETRY = obj(
    optional("attempts", integer(minimum=1)),
    optional("backoff", plain_duration),
    optional("codes", array(integer(minimum=400, maximum=599), list_type="atomic")),
    optional("condition", cel_expression),
    optional("precondition", cel_expression),
    title="Retry",
)

traffic_section = obj(
    optional(
        "phase",
        enum("PostRouting", "PreRouting"),
        "Whether the section runs before or after a route is chosen; after, if left out.",
    ),
    optional("transformation", _TRANSFORMATION),
    optional("extProc", ext_proc),
    optional("extAuth", ext_auth),
    optional("rateLimit", rate_limit),
    optional("cors", cors),
    optional("csrf", obj(optional("additionalOrigins", array(short_string, min_items=1, max_items=16)))),
    optional("headerModifiers", header_modifiers),
    optional("hostRewrite", obj(required("mode", enum("Auto", "None")))),
    optional(
        "timeouts",
        obj(optional("request", duration("1ms", "request must be at least 1ms")), at_least_one_of("request")),
    ),
    optional("retry", _RETRY),
    optional("delay", obj(required("duration", cel_expression))),
    optional("authorization", authorization, "Decides on requests; the rules of all levels are taken together."),
    optional("jwtAuthentication", jwt_authentication),
    optional("basicAuthentication", basic_authentication),
    optional("apiKeyAuthentication", api_key_authentication),
    optional("directResponse", _DIRECT_RESPONSE),
    optional(
        "buffer",
        obj(optional("request", _body), optional("response", _body), at_least_one_of("request", "response")),
    ),
    rule(
        "has(self.phase) && self.phase == 'PreRouting' ? "
        f"[{','.join(f'has(self.{name})' for name in _PREROUTING)}].filter(x,x==true).size() == 0 : true",
        "phase PreRouting only supports extAuth, authorization, transformation, extProc, jwtAuthentication,"
        " basicAuthentication, apiKeyAuthentication and cors",
    ),
    title="Traffic",
)
