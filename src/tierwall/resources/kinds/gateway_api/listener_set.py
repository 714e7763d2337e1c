"""ListenerSet: listeners added to a Gateway from elsewhere (v1; before that XListenerSet of the experimental group)."""

from tierwall.resources.kinds.gateway_api.listeners import DISTINCT_PORT_OPTIONAL, listener, listeners
from tierwall.resources.kinds.gateway_types.names import port_number
from tierwall.resources.kinds.gateway_types.references import GATEWAY_GROUP, parent_gateway_reference
from tierwall.resources.kinds.gateway_types.status import listener_statuses, waiting_status
from tierwall.resources.kinds.kind import Column, Kind
from tierwall.resources.schema import Schema, array, extend, integer, obj, optional, required

_COLUMNS = (
    Column("Accepted", "string", '.status.conditions[?(@.type=="Accepted")].status'),
    Column("Programmed", "string", '.status.conditions[?(@.type=="Programmed")].status'),
    Column("Age", "date", ".metadata.creationTimestamp"),
)


def _schema(item: Schema, statuses: Schema) -> Schema:
    return obj(
        required(
            "spec",
            obj(
                required("parentRef", parent_gateway_reference, "The Gateway that the listeners are added to."),
                required("listeners", listeners(item, DISTINCT_PORT_OPTIONAL)),
            ),
        ),
        optional(
            "status",
            waiting_status("Accepted", "Programmed", more=(optional("listeners", statuses),)),
        ),
    )


listener_set = Kind(
    group=GATEWAY_GROUP,
    version="v1",
    kind="ListenerSet",
    plural="listenersets",
    short_names=("lset",),
    categories=("gateway-api",),
    columns=_COLUMNS,
    status_subresource=True,
    description="Listeners that are added to a Gateway, possibly from another namespace.",
    schema=_schema(listener, listener_statuses),
)

# The experimental kind let a listener leave its port to the implementation, and reported the port in its status.
_port_optional = integer(minimum=0, maximum=65535, format="int32", default=0)
_status_item = listener_statuses.items
assert _status_item is not None

x_listener_set = Kind(
    group="gateway.networking.x-k8s.io",
    version="v1alpha1",
    kind="XListenerSet",
    plural="xlistenersets",
    short_names=("lset",),
    categories=("gateway-api",),
    columns=_COLUMNS,
    status_subresource=True,
    description="The experimental form of ListenerSet.",
    schema=_schema(
        extend(listener, optional("port", _port_optional)),
        array(extend(_status_item, required("port", port_number)), max_items=64, list_type="map", keys=("name",)),
    ),
)

KINDS = (listener_set, x_listener_set)
