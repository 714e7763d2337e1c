"""Listeners, as a Gateway and a ListenerSet have them: port, protocol, host name, TLS, and which routes may attach."""

from tierwall.resources.kinds.gateway_types.names import (
    annotation_value,
    hostname,
    port_number,
    protocol_type,
    section_name,
)
from tierwall.resources.kinds.gateway_types.references import secret_object_reference
from tierwall.resources.kinds.gateway_types.status import route_group_kinds
from tierwall.resources.kinds.meta import crd_label_selector
from tierwall.resources.schema import Rule, Schema, array, enum, mapping, obj, optional, required, rule

_listener_tls = obj(
    optional("mode", enum("Terminate", "Passthrough", default="Terminate")),
    optional("certificateRefs", array(secret_object_reference, max_items=64, list_type="atomic")),
    optional("options", mapping(annotation_value, max_properties=16)),
    rule(
        "self.mode == 'Terminate' ? size(self.certificateRefs) > 0 || size(self.options) > 0 : true",
        "certificateRefs or options must be specified when mode is Terminate",
    ),
    title="ListenerTLSConfig",
)

_allowed_routes = obj(
    optional(
        "namespaces",
        obj(
            optional("from", enum("All", "Selector", "Same", default="Same")),
            optional("selector", crd_label_selector, "The namespaces that may attach, with `from: Selector`."),
            default={"from": "Same"},
        ),
        "From which namespaces routes may attach.",
    ),
    optional("kinds", route_group_kinds, "The kinds of route that may attach; by default those of the protocol."),
    default={"namespaces": {"from": "Same"}},
    title="AllowedRoutes",
)

listener = obj(
    required("name", section_name, "The name that a sectionName refers to."),
    optional("hostname", hostname, "The host name to match; every one if left out."),
    required("port", port_number),
    required("protocol", protocol_type, "HTTP, HTTPS, TLS, TCP, UDP or an implementation's own."),
    optional("tls", _listener_tls),
    optional("allowedRoutes", _allowed_routes),
    title="Listener",
)

_SHARED_RULES = (
    rule(
        "self.all(l, l.protocol in ['HTTP', 'TCP', 'UDP'] ? !has(l.tls) : true)",
        "tls must not be specified for protocols ['HTTP', 'TCP', 'UDP']",
    ),
    rule(
        "self.all(l, (l.protocol == 'HTTPS' && has(l.tls)) ? (l.tls.mode == '' || l.tls.mode == 'Terminate') : true)",
        "tls mode must be Terminate for protocol HTTPS",
    ),
    rule(
        "self.all(l, (l.protocol == 'TLS' ? has(l.tls) && has(l.tls.mode) && l.tls.mode != '' : true))",
        "tls mode must be set for protocol TLS",
    ),
    rule(
        "self.all(l, l.protocol in ['TCP', 'UDP'] ? (!has(l.hostname) || l.hostname == '') : true)",
        "hostname must not be specified for protocols ['TCP', 'UDP']",
    ),
    rule(
        "self.all(l1, self.exists_one(l2, l1.name == l2.name))",
        "Listener name must be unique within the Gateway",
    ),
)
_SAME_HOSTNAME = (
    "(has(l1.hostname) && has(l2.hostname) ? l1.hostname == l2.hostname : !has(l1.hostname) && !has(l2.hostname))"
)
DISTINCT = rule(
    f"self.all(l1, self.exists_one(l2, l1.port == l2.port && l1.protocol == l2.protocol && {_SAME_HOSTNAME}))",
    "Combination of port, protocol and hostname must be unique for each listener",
)
DISTINCT_PORT_OPTIONAL = rule(
    "self.all(l1, !has(l1.port) || self.exists_one(l2, has(l2.port) && l1.port == l2.port && "
    f"l1.protocol == l2.protocol && {_SAME_HOSTNAME}))",
    "Combination of port, protocol and hostname must be unique for each listener",
)


def listeners(item: Schema, distinct: Rule) -> Schema:
    """The list of listeners with its cross-listener rules."""
    return array(item, *_SHARED_RULES, distinct, min_items=1, max_items=64, list_type="map", keys=("name",))
