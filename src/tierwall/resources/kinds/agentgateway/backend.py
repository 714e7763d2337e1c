"""The backend section: how the gateway connects to a destination. Also the narrower inline forms of it."""

from tierwall.resources.kinds.agentgateway.ai import ai
from tierwall.resources.kinds.agentgateway.backend_auth import backend_auth
from tierwall.resources.kinds.agentgateway.connection import backend_http, backend_tcp, backend_tls, backend_tunnel
from tierwall.resources.kinds.agentgateway.external import backend_ext_auth
from tierwall.resources.kinds.agentgateway.mcp import mcp
from tierwall.resources.kinds.agentgateway.scalars import cel_expression, duration
from tierwall.resources.kinds.agentgateway.transformation import transformation
from tierwall.resources.schema import at_least_one_of, integer, obj, optional

_percent = integer(minimum=0, maximum=100, format="int32")

health = obj(
    optional("unhealthyCondition", cel_expression),
    optional(
        "eviction",
        obj(
            optional("duration", duration("1s", "duration must be at least 1 second", default="3s")),
            optional("consecutiveFailures", integer(minimum=0, format="int32")),
            optional("healthThreshold", _percent),
            optional("restoreHealth", _percent),
        ),
    ),
    title="Health",
)

_SIMPLE = (
    optional("tcp", backend_tcp),
    optional("tls", backend_tls),
    optional("http", backend_http),
    optional("tunnel", backend_tunnel),
    optional("auth", backend_auth),
)

# Inline on a static MCP target.
target_section = obj(*_SIMPLE, title="BackendSimple")

# Inline on an AI provider of a group.
provider_section = obj(
    *_SIMPLE,
    optional("ai", ai),
    optional("transformation", transformation),
    optional("health", health),
    at_least_one_of("ai", "auth", "health", "http", "tcp", "tls", "transformation", "tunnel"),
    title="BackendWithAI",
)

# In a policy, inline on a backend, and inline on a route's backend reference.
backend_section = obj(
    *_SIMPLE,
    optional("ai", ai),
    optional("mcp", mcp),
    optional("transformation", transformation),
    optional("health", health),
    optional("extAuth", backend_ext_auth),
    at_least_one_of("ai", "auth", "extAuth", "health", "http", "mcp", "tcp", "tls", "transformation", "tunnel"),
    title="BackendFull",
)
