"""GatewayClass and Gateway of the Gateway API (v1, and v1beta1 with the same shape)."""

from msgspec.structs import replace

from tierwall.resources.kinds.gateway_api.listeners import DISTINCT, listener, listeners
from tierwall.resources.kinds.gateway_types.names import (
    QUALIFIED_KEY,
    WILDCARD_HOSTNAME,
    address_type,
    annotation_value,
    controller_name,
    label_value,
    object_name,
    port_number,
)
from tierwall.resources.kinds.gateway_types.references import (
    GATEWAY_GROUP,
    local_object_reference,
    object_reference,
    secret_object_reference,
)
from tierwall.resources.kinds.gateway_types.status import listener_statuses, waiting_status
from tierwall.resources.kinds.kind import Column, Kind
from tierwall.resources.kinds.meta import crd_label_selector
from tierwall.resources.schema import (
    Rule,
    Schema,
    array,
    enum,
    integer,
    mapping,
    obj,
    optional,
    required,
    rule,
    string,
)

_AGE = Column("Age", "date", ".metadata.creationTimestamp")

gateway_class = Kind(
    group=GATEWAY_GROUP,
    version="v1",
    kind="GatewayClass",
    plural="gatewayclasses",
    scope="Cluster",
    short_names=("gc",),
    categories=("gateway-api",),
    columns=(Column("Controller", "string", ".spec.controllerName"), _AGE),
    status_subresource=True,
    description="A class of Gateways that one controller looks after.",
    schema=obj(
        required(
            "spec",
            obj(
                required("controllerName", controller_name, "The controller of this class, as `domain/path`."),
                optional("parametersRef", object_reference),
                optional("description", string(max_length=64)),
            ),
        ),
        optional(
            "status",
            waiting_status(
                "Accepted",
                more=(
                    optional(
                        "supportedFeatures",
                        array(obj(required("name", string())), max_items=64, list_type="map", keys=("name",)),
                    ),
                ),
            ),
        ),
    ),
)


# An address is an IP address, or of another type with any text; the two alternatives exclude each other.
_ADDRESS_FORMS = (
    Schema(
        properties=(
            optional("type", Schema(enum=("IPAddress",))),
            optional("value", Schema(any_of=(Schema(format="ipv4"), Schema(format="ipv6")))),
        )
    ),
    Schema(properties=(optional("type", Schema(none_of=Schema(enum=("IPAddress",)))),)),
)


def _distinct_addresses(type_name: str) -> Rule:
    return rule(
        f"self.all(a1, a1.type == '{type_name}' && has(a1.value) ? "
        "self.exists_one(a2, a2.type == a1.type && has(a2.value) && a2.value == a1.value) : true)",
        f"{type_name} values must be unique",
    )


_addresses = array(
    obj(
        optional("type", address_type),
        optional("value", string(max_length=253)),
        rule(
            f'self.type == \'Hostname\' ? (!has(self.value) || self.value.matches(r"""{WILDCARD_HOSTNAME}""")) : true',
            f"Hostname value must be empty or contain only valid characters (matching {WILDCARD_HOSTNAME})",
        ),
        one_of=_ADDRESS_FORMS,
    ),
    _distinct_addresses("IPAddress"),
    _distinct_addresses("Hostname"),
    max_items=16,
    list_type="atomic",
)

_status_addresses = array(
    obj(
        optional("type", address_type),
        required("value", string(min_length=1, max_length=253)),
        rule(
            f'self.type == \'Hostname\' ? self.value.matches(r"""{WILDCARD_HOSTNAME}""") : true',
            f"Hostname value must only contain valid characters (matching {WILDCARD_HOSTNAME})",
        ),
        one_of=_ADDRESS_FORMS,
    ),
    max_items=16,
    list_type="atomic",
)


def _metadata(value: Schema, word: str, article: str) -> Schema:
    """Labels or annotations for the objects an implementation creates."""
    return mapping(
        value,
        rule(
            f'self.all(key, key.matches(r"""{QUALIFIED_KEY}"""))',
            f"{word} keys must be in the form of an optional DNS subdomain prefix followed by a required name segment"
            " of up to 63 characters.",
        ),
        rule(
            'self.all(key, key.split("/")[0].size() < 253)',
            f"If specified, the {article} key's prefix must be a DNS subdomain not longer than 253 characters in"
            " total.",
        ),
        max_properties=8,
    )


_frontend_validation = obj(
    optional(
        "validation",
        obj(
            required("caCertificateRefs", array(object_reference, min_items=1, max_items=8, list_type="atomic")),
            optional("mode", enum("AllowValidOnly", "AllowInsecureFallback", default="AllowValidOnly")),
        ),
    ),
)

_gateway_tls = obj(
    optional("backend", obj(optional("clientCertificateRef", secret_object_reference))),
    optional(
        "frontend",
        obj(
            required("default", _frontend_validation),
            optional(
                "perPort",
                array(
                    obj(required("port", port_number), required("tls", _frontend_validation)),
                    rule(
                        "self.all(t1, self.exists_one(t2, t1.port == t2.port))",
                        "Port for TLS configuration must be unique within the Gateway",
                    ),
                    max_items=64,
                    list_type="map",
                    keys=("port",),
                ),
            ),
        ),
    ),
    title="GatewayTLSConfig",
)

gateway = Kind(
    group=GATEWAY_GROUP,
    version="v1",
    kind="Gateway",
    plural="gateways",
    short_names=("gtw",),
    categories=("gateway-api",),
    columns=(
        Column("Class", "string", ".spec.gatewayClassName"),
        Column("Address", "string", ".status.addresses[*].value"),
        Column("Programmed", "string", '.status.conditions[?(@.type=="Programmed")].status'),
        _AGE,
    ),
    status_subresource=True,
    description="A point where traffic enters: addresses and listeners.",
    schema=obj(
        required(
            "spec",
            obj(
                required("gatewayClassName", object_name),
                required("listeners", listeners(listener, DISTINCT)),
                optional("addresses", _addresses),
                optional(
                    "infrastructure",
                    obj(
                        optional("labels", _metadata(label_value, "Label", "label")),
                        optional("annotations", _metadata(annotation_value, "Annotation", "annotation")),
                        optional("parametersRef", local_object_reference),
                    ),
                ),
                optional(
                    "allowedListeners",
                    obj(
                        optional(
                            "namespaces",
                            obj(
                                optional("from", enum("All", "Selector", "Same", "None", default="None")),
                                optional("selector", crd_label_selector),
                                default={"from": "None"},
                            ),
                        ),
                    ),
                    "From which namespaces ListenerSets may add listeners.",
                ),
                optional("tls", _gateway_tls),
                optional("defaultScope", enum("All", "None"), "Experimental: the routes that use it by default."),
            ),
        ),
        optional(
            "status",
            waiting_status(
                "Accepted",
                "Programmed",
                more=(
                    optional("addresses", _status_addresses),
                    optional("attachedListenerSets", integer(format="int32")),
                    optional("listeners", listener_statuses),
                ),
            ),
        ),
    ),
)

KINDS = (
    gateway_class,
    replace(gateway_class, version="v1beta1", storage=False),
    gateway,
    replace(gateway, version="v1beta1", storage=False),
)
