"""Rate limits: local ones, kept by each proxy, and global ones, kept by a service; flat or conditional."""

from tierwall.resources.kinds.agentgateway.conditional import conditional, excludes
from tierwall.resources.kinds.agentgateway.references import BACKEND_REF_OR_URL, url_without_path
from tierwall.resources.kinds.agentgateway.scalars import (
    cel_expression,
    failure_mode,
    short_string,
    tiny_string,
    url,
)
from tierwall.resources.kinds.gateway_types.references import backend_object_reference
from tierwall.resources.schema import (
    array,
    at_least_one_of,
    enum,
    exactly_one_of,
    integer,
    obj,
    optional,
    required,
)

_descriptor = obj(
    required(
        "entries",
        array(obj(required("name", tiny_string), required("expression", cel_expression)), min_items=1, max_items=16),
    ),
    optional("unit", enum("Requests", "Tokens")),
    optional("cost", cel_expression),
    optional("limitOverride", cel_expression),
    title="RateLimitDescriptor",
)

_global = obj(
    optional("backendRef", backend_object_reference),
    optional("url", url),
    optional("failureMode", failure_mode),
    required("domain", short_string),
    required("descriptors", array(_descriptor, min_items=1, max_items=16)),
    url_without_path(),
    BACKEND_REF_OR_URL,
    title="GlobalRateLimit",
)

_local = array(
    obj(
        optional("requests", integer(minimum=1, format="int32")),
        optional("tokens", integer(minimum=1, format="int32")),
        required("unit", enum("Hours", "Minutes", "Seconds")),
        optional("burst", integer(minimum=0, format="int32")),
        exactly_one_of("requests", "tokens"),
        title="LocalRateLimit",
    ),
    min_items=1,
    max_items=16,
)

rate_limit = obj(
    optional("local", _local),
    optional("global", _global),
    conditional(obj(optional("local", _local), optional("global", _global), at_least_one_of("global", "local"))),
    at_least_one_of("conditional", "global", "local"),
    excludes("global", "local"),
    title="RateLimitsOrConditional",
)
