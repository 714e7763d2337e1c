"""References of the Gateway API: parents, backends, certificates, parameters; and the rules about lists of them."""

from tierwall.resources.kinds.gateway_types.names import group, kind, namespace, object_name, port_number, section_name
from tierwall.resources.schema import array, obj, optional, required, rule

GATEWAY_GROUP = "gateway.networking.k8s.io"

_SERVICE_NEEDS_PORT = rule(
    "(size(self.group) == 0 && self.kind == 'Service') ? has(self.port) : true", "Must have port for Service reference"
)

local_object_reference = obj(
    required("group", group()), required("kind", kind()), required("name", object_name), title="LocalObjectReference"
)

object_reference = obj(
    required("group", group()),
    required("kind", kind()),
    required("name", object_name),
    optional("namespace", namespace),
    title="ObjectReference",
)

secret_object_reference = obj(
    optional("group", group("")),
    optional("kind", kind("Secret")),
    required("name", object_name),
    optional("namespace", namespace),
    title="SecretObjectReference",
)

backend_object_reference = obj(
    optional("group", group(""), "The group of the referent; the core group if left out."),
    optional("kind", kind("Service"), "The kind of the referent; `Service` if left out."),
    required("name", object_name),
    optional("namespace", namespace, "Another namespace than the object's own needs a ReferenceGrant there."),
    optional("port", port_number, "The destination port; required for a Service."),
    _SERVICE_NEEDS_PORT,
    title="BackendObjectReference",
)

parent_gateway_reference = obj(
    optional("group", group(GATEWAY_GROUP)),
    optional("kind", kind("Gateway")),
    required("name", object_name),
    optional("namespace", namespace),
    title="ParentGatewayReference",
)

parent_reference = obj(
    optional("group", group(GATEWAY_GROUP)),
    optional("kind", kind("Gateway")),
    required("name", object_name),
    optional("namespace", namespace),
    optional("sectionName", section_name, "The listener of a Gateway or ListenerSet to attach to."),
    optional("port", port_number),
    title="ParentReference",
)

_SAME_PARENT = (
    "p1.group == p2.group && p1.kind == p2.kind && p1.name == p2.name && "
    "(((!has(p1.__namespace__) || p1.__namespace__ == '') && (!has(p2.__namespace__) || p2.__namespace__ == '')) || "
    "(has(p1.__namespace__) && has(p2.__namespace__) && p1.__namespace__ == p2.__namespace__))"
)
_SAME_SECTION = (
    "(((!has(p1.sectionName) || p1.sectionName == '') && (!has(p2.sectionName) || p2.sectionName == '')) || "
    "(has(p1.sectionName) && has(p2.sectionName) && p1.sectionName == p2.sectionName))"
)
_SAME_PORT = (
    "(((!has(p1.port) || p1.port == 0) && (!has(p2.port) || p2.port == 0)) || "
    "(has(p1.port) && has(p2.port) && p1.port == p2.port))"
)

parent_references = array(
    parent_reference,
    rule(
        f"self.all(p1, self.all(p2, {_SAME_PARENT} ? "
        "((!has(p1.sectionName) || p1.sectionName == '') == (!has(p2.sectionName) || p2.sectionName == '') && "
        "(!has(p1.port) || p1.port == 0) == (!has(p2.port) || p2.port == 0)) : true))",
        "sectionName or port must be specified when parentRefs includes 2 or more references to the same parent",
    ),
    rule(
        f"self.all(p1, self.exists_one(p2, {_SAME_PARENT} && {_SAME_SECTION} && {_SAME_PORT}))",
        "sectionName or port must be unique when parentRefs includes 2 or more references to the same parent",
    ),
    max_items=32,
    list_type="atomic",
)
