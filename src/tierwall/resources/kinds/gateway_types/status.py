"""The status types that Gateway API kinds and policies share: conditions, a route's parents, a policy's ancestors."""

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from tierwall.resources.kinds.gateway_types.names import condition_type, controller_name, group, kind, section_name
from tierwall.resources.kinds.gateway_types.references import GATEWAY_GROUP, parent_reference
from tierwall.resources.schema import Property, Schema, array, enum, integer, obj, optional, required, string

condition = obj(
    required("type", condition_type),
    required("status", enum("True", "False", "Unknown")),
    required("reason", string(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")),
    required("message", string(max_length=32768)),
    required("lastTransitionTime", string(format="date-time")),
    optional("observedGeneration", integer(minimum=0, format="int64")),
    title="Condition",
)


def conditions(*, min_items: int | None = None, max_items: int | None = 8, default: Any = UNSET) -> Schema:
    """A list of conditions, one of a type."""
    return array(condition, min_items=min_items, max_items=max_items, list_type="map", keys=("type",), default=default)


def waiting_status(*pending: str, more: Iterable[Property] = ()) -> Schema:
    """A status with conditions; those in `pending` stand there as Unknown until a controller has spoken."""
    default = [
        {
            "type": name,
            "status": "Unknown",
            "reason": "Pending",
            "message": "Waiting for controller",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }
        for name in pending
    ]
    return obj(optional("conditions", conditions(default=default)), *more, default={"conditions": default})


route_status = obj(
    required(
        "parents",
        array(
            obj(
                required("parentRef", parent_reference),
                required("controllerName", controller_name),
                required("conditions", conditions(min_items=1)),
            ),
            max_items=32,
            list_type="atomic",
        ),
    ),
    title="RouteStatus",
)

policy_status = obj(
    required(
        "ancestors",
        array(
            obj(
                required("ancestorRef", parent_reference),
                required("controllerName", controller_name),
                required("conditions", conditions(min_items=1)),
            ),
            max_items=16,
            list_type="atomic",
        ),
    ),
    title="PolicyStatus",
)

route_group_kinds = array(
    obj(optional("group", group(GATEWAY_GROUP)), required("kind", kind())), max_items=8, list_type="atomic"
)

listener_statuses = array(
    obj(
        required("name", section_name),
        required("attachedRoutes", integer(format="int32")),
        required("conditions", conditions()),
        optional("supportedKinds", route_group_kinds),
    ),
    max_items=64,
    list_type="map",
    keys=("name",),
)
