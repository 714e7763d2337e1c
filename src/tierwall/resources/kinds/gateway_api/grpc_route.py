"""GRPCRoute of the Gateway API (v1; v1alpha2 had the same shape), standard and experimental channel."""

from msgspec.structs import replace

from tierwall.resources.kinds.gateway_api.routes import named_matches, route_kind, route_rule, route_rules
from tierwall.resources.kinds.gateway_types.filters import grpc_filters
from tierwall.resources.schema import array, enum, obj, optional, rule, string

_SERVICE_NAME = r"^(?i)\.?[a-z_][a-z_0-9]*(\.[a-z_][a-z_0-9]*)*$"
_METHOD_NAME = r"^[A-Za-z_][A-Za-z_0-9]*$"
_EXACT = "(!has(self.type) || self.type == 'Exact')"

_method_match = obj(
    optional("type", enum("Exact", "RegularExpression", default="Exact")),
    optional("service", string(max_length=1024)),
    optional("method", string(max_length=1024)),
    rule(
        "has(self.type) ? has(self.service) || has(self.method) : true",
        "One or both of 'service' or 'method' must be specified",
    ),
    rule(
        f'{_EXACT} && has(self.service) ? self.service.matches(r"""{_SERVICE_NAME}""") : true',
        f"service must only contain valid characters (matching {_SERVICE_NAME})",
    ),
    rule(
        f'{_EXACT} && has(self.method) ? self.method.matches(r"""{_METHOD_NAME}""") : true',
        f"method must only contain valid characters (matching {_METHOD_NAME})",
    ),
    title="GRPCMethodMatch",
)

_match = obj(
    optional("method", _method_match),
    optional("headers", named_matches(string(min_length=1, max_length=4096))),
)

_rule = route_rule(array(_match, max_items=64, list_type="atomic"), grpc_filters, title="GRPCRouteRule")

grpc_route = route_kind(
    "GRPCRoute", "gRPC", route_rules(_rule, "(has(self[{0}].matches) ? self[{0}].matches.size() : 0)")
)

KINDS = (grpc_route, replace(grpc_route, version="v1alpha2", storage=False))
