"""GRPCRoute of the Gateway API (v1; v1alpha2 had the same shape), standard and experimental channel."""

from msgspec.structs import replace

from tierwall.resources.kinds.gateway_api.routes import (
    DISTINCT_RULE_NAMES,
    backend_reference,
    bounded_matches,
    session_persistence,
)
from tierwall.resources.kinds.gateway_types.filters import grpc_filters
from tierwall.resources.kinds.gateway_types.names import header_name, hostname, section_name
from tierwall.resources.kinds.gateway_types.references import GATEWAY_GROUP, parent_references
from tierwall.resources.kinds.gateway_types.status import route_status
from tierwall.resources.kinds.kind import Column, Kind
from tierwall.resources.schema import array, enum, obj, optional, required, rule, string

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

_rule = obj(
    optional("name", section_name, "The name by which a policy's sectionName refers to this rule."),
    optional(
        "matches",
        array(
            obj(
                optional("method", _method_match),
                optional(
                    "headers",
                    array(
                        obj(
                            required("name", header_name),
                            optional("type", enum("Exact", "RegularExpression", default="Exact")),
                            required("value", string(min_length=1, max_length=4096)),
                        ),
                        max_items=16,
                        list_type="map",
                        keys=("name",),
                    ),
                ),
            ),
            max_items=64,
            list_type="atomic",
        ),
    ),
    optional("filters", grpc_filters),
    optional("backendRefs", array(backend_reference(grpc_filters), max_items=16, list_type="atomic")),
    optional("sessionPersistence", session_persistence),
    title="GRPCRouteRule",
)

grpc_route = Kind(
    group=GATEWAY_GROUP,
    version="v1",
    kind="GRPCRoute",
    plural="grpcroutes",
    categories=("gateway-api",),
    columns=(
        Column("Hostnames", "string", ".spec.hostnames"),
        Column("Age", "date", ".metadata.creationTimestamp"),
    ),
    status_subresource=True,
    description="Routes gRPC requests from Gateways and ListenerSets to backends.",
    schema=obj(
        required(
            "spec",
            obj(
                optional("parentRefs", parent_references),
                optional("hostnames", array(hostname, max_items=16, list_type="atomic")),
                optional(
                    "rules",
                    array(
                        _rule,
                        bounded_matches("(has(self[{0}].matches) ? self[{0}].matches.size() : 0)"),
                        DISTINCT_RULE_NAMES,
                        max_items=16,
                        list_type="atomic",
                    ),
                ),
                optional("useDefaultGateways", enum("All", "None")),
            ),
        ),
        optional("status", route_status),
    ),
)

KINDS = (grpc_route, replace(grpc_route, version="v1alpha2", storage=False))
