"""Namespace, Node, Pod and Service (`v1`): objects that are only read.

Only the fields that a decision looks at are described, so that a value of a wrong type there is never misread; all
other fields are let through.
"""

from tierwall.resources.kinds.kind import Kind
from tierwall.resources.schema import (
    Schema,
    array,
    boolean,
    int_or_string,
    integer,
    mapping,
    obj,
    optional,
    rule,
    string,
)

_protocol = string(enum=("TCP", "UDP", "SCTP"), default="TCP")

_container_port = obj(
    optional("name", string(format="k8s-port-name"), "The name by which policies may call the port."),
    optional("containerPort", integer(format="int32")),
    optional("protocol", _protocol),
    rule(
        "!has(self.containerPort) || self.containerPort > 0 && self.containerPort < 65536",
        "must be between 1 and 65535, inclusive",
        field_path=".containerPort",
    ),
)
_container = obj(optional("name", string()), optional("ports", array(_container_port), "Ports that it listens on."))

pod_spec: Schema = obj(
    optional("containers", array(_container)),
    optional("initContainers", array(_container)),
    optional("hostNetwork", boolean(), "Uses the node's network; no policy is about it."),
    optional("nodeName", string(), "The node that it runs on."),
    optional("serviceAccountName", string(), "Its identity."),
    title="PodSpec",
)

_ip = obj(optional("ip", string()))
_pod_status = obj(
    optional("podIP", string(), "Its address."),
    optional("podIPs", array(_ip), "All of its addresses."),
    optional("hostIP", string()),
    optional("phase", string()),
)

_node_status = obj(
    optional(
        "addresses",
        array(obj(optional("type", string()), optional("address", string()))),
        "InternalIP and ExternalIP are the node's addresses.",
    )
)

_service_port = obj(
    optional("name", string()),
    optional("port", integer(format="int32")),
    optional("protocol", _protocol),
    optional("targetPort", int_or_string()),
    optional("appProtocol", string()),
)
_service_spec = obj(
    optional("selector", mapping(string()), "The pods behind it, by label."),
    optional("ports", array(_service_port)),
    optional("type", string()),
    optional("clusterIP", string()),
    optional("clusterIPs", array(string())),
    optional("externalName", string()),
)

KINDS = (
    Kind(
        group="",
        version="v1",
        kind="Namespace",
        plural="namespaces",
        scope="Cluster",
        short_names=("ns",),
        name_format="k8s-short-name",
        strict=False,
        is_crd=False,
        description="A namespace; its labels are what policies select.",
        schema=obj(),
    ),
    Kind(
        group="",
        version="v1",
        kind="Node",
        plural="nodes",
        scope="Cluster",
        short_names=("no",),
        strict=False,
        is_crd=False,
        description="A node; policies may select it by label and match its addresses.",
        schema=obj(optional("status", _node_status)),
    ),
    Kind(
        group="",
        version="v1",
        kind="Pod",
        plural="pods",
        short_names=("po",),
        strict=False,
        is_crd=False,
        description="A pod: the end of a connection.",
        schema=obj(optional("spec", pod_spec), optional("status", _pod_status)),
    ),
    Kind(
        group="",
        version="v1",
        kind="Service",
        plural="services",
        short_names=("svc",),
        name_format="k8s-service-name",
        strict=False,
        is_crd=False,
        description="A Service: a backend of routes.",
        schema=obj(optional("spec", _service_spec)),
    ),
)
