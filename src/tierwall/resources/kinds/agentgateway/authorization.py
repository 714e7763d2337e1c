"""Authorization rules, the same at every place: network connections, HTTP requests, MCP items."""

from tierwall.resources.kinds.agentgateway.scalars import cel_expression
from tierwall.resources.schema import array, enum, obj, optional, required

authorization = obj(
    optional(
        "action",
        enum("Allow", "Deny", "Require", default="Allow"),
        "Deny refuses what matches; Require refuses what does not; Allow refuses what no Allow rule matches.",
    ),
    required(
        "policy",
        obj(
            required(
                "matchExpressions",
                array(cel_expression, min_items=1, max_items=256),
                "CEL expressions, each a rule of its own.",
            )
        ),
    ),
    title="Authorization",
)
