"""ReferenceGrant: which kinds in other namespaces may refer to which kinds in this one."""

from msgspec.structs import replace

from tierwall.resources.kinds.gateway_types.names import group, kind, namespace, object_name
from tierwall.resources.kinds.gateway_types.references import GATEWAY_GROUP
from tierwall.resources.kinds.kind import Column, Kind
from tierwall.resources.schema import array, obj, optional, required

reference_grant = Kind(
    group=GATEWAY_GROUP,
    version="v1",
    kind="ReferenceGrant",
    plural="referencegrants",
    short_names=("refgrant",),
    categories=("gateway-api",),
    columns=(Column("Age", "date", ".metadata.creationTimestamp"),),
    storage=False,
    description="Lets objects of other namespaces refer to objects of this one.",
    schema=obj(
        optional(
            "spec",
            obj(
                required(
                    "from",
                    array(
                        obj(required("group", group()), required("kind", kind()), required("namespace", namespace)),
                        min_items=1,
                        max_items=16,
                        list_type="atomic",
                    ),
                    "Who may refer here.",
                ),
                required(
                    "to",
                    array(
                        obj(required("group", group()), required("kind", kind()), optional("name", object_name)),
                        min_items=1,
                        max_items=16,
                        list_type="atomic",
                    ),
                    "What they may refer to; without a name every object of the kind.",
                ),
            ),
        ),
    ),
)

KINDS = (
    reference_grant,
    replace(reference_grant, version="v1beta1", storage=True),
    replace(reference_grant, version="v1alpha2"),
)
