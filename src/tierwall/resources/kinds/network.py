"""NetworkPolicy (`networking.k8s.io/v1`), with the checks of Kubernetes' own Go validation as data.

Text of the checks: `pkg/apis/networking/validation/validation.go`. A CIDR with bits beyond its prefix is let through
and masked, as an API server without strict IP validation does.
"""

from tierwall.resources.kinds.kind import Kind
from tierwall.resources.kinds.meta import label_selector
from tierwall.resources.schema import (
    array,
    int_or_string,
    integer,
    obj,
    optional,
    required,
    rule,
    string,
    warning,
)

_PROTOCOLS = ("TCP", "UDP", "SCTP")

_port = obj(
    optional("protocol", string(enum=_PROTOCOLS, default="TCP"), "TCP, UDP or SCTP."),
    optional("port", int_or_string(format="k8s-port"), "Number or name of a port of the pod; all ports if left out."),
    optional("endPort", integer(format="int32"), "Last port of a range that begins with `port`."),
    rule(
        "!has(self.endPort) || has(self.port)",
        "may not be specified when `port` is not specified",
        field_path=".endPort",
    ),
    rule(
        "!has(self.endPort) || !has(self.port) || type(self.port) == int",
        "may not be specified when `port` is non-numeric",
        field_path=".endPort",
    ),
    rule(
        "!has(self.endPort) || !has(self.port) || type(self.port) != int || self.endPort >= int(self.port)",
        "must be greater than or equal to `port`",
        field_path=".endPort",
    ),
    rule(
        "!has(self.endPort) || !has(self.port) || type(self.port) != int || self.endPort >= 1 && self.endPort <= 65535",
        "must be between 1 and 65535, inclusive",
        field_path=".endPort",
    ),
)

_ip_block = obj(
    required("cidr", string(format="k8s-cidr"), "The addresses, as 10.0.0.0/8 or 2001:db8::/32."),
    optional("except", array(string(format="k8s-cidr")), "Addresses inside `cidr` that are left out."),
    rule(
        "!isCIDR(self.cidr) || !isCIDR(item) || "
        "cidr(self.cidr).containsCIDR(cidr(item)) && cidr(item).prefixLength() > cidr(self.cidr).prefixLength()",
        "must be a strict subset of `cidr`",
        each="except",
    ),
    warning(
        "!isCIDR(self.cidr) || cidr(self.cidr).masked() == cidr(self.cidr)",
        "CIDR value has bits set beyond the prefix length; it is read as the network that holds them",
        field_path=".cidr",
    ),
)

_peer = obj(
    optional("podSelector", label_selector, "Pods, in the namespaces of `namespaceSelector` or in the policy's own."),
    optional("namespaceSelector", label_selector, "Namespaces, all of their pods if `podSelector` is left out."),
    optional("ipBlock", _ip_block, "Addresses; not together with the selectors."),
    rule(
        "has(self.podSelector) || has(self.namespaceSelector) || has(self.ipBlock)",
        "must specify a peer",
        reason="FieldValueRequired",
    ),
    rule(
        "!has(self.ipBlock) || !has(self.podSelector) && !has(self.namespaceSelector)",
        "may not specify both ipBlock and another peer",
        reason="FieldValueForbidden",
    ),
)

_ports = array(_port, description="Any of these; every port if left out or empty.")
_peers = array(_peer, description="Any of these; everyone if left out or empty.")

_spec = obj(
    optional("podSelector", label_selector, "The pods under this policy, of its own namespace; empty selects all."),
    optional("policyTypes", array(string(enum=("Ingress", "Egress"))), "The directions that the policy isolates."),
    optional("ingress", array(obj(optional("from", _peers), optional("ports", _ports))), "What may come in."),
    optional("egress", array(obj(optional("to", _peers), optional("ports", _ports))), "What may go out."),
    rule(
        "!has(self.policyTypes) || size(self.policyTypes) <= 2",
        "may not specify more than two policyTypes",
        field_path=".policyTypes",
    ),
)

KINDS = (
    Kind(
        group="networking.k8s.io",
        version="v1",
        kind="NetworkPolicy",
        plural="networkpolicies",
        short_names=("netpol",),
        is_crd=False,
        status_subresource=True,
        description="What a namespace's owner lets in and out of its pods.",
        schema=obj(optional("spec", _spec)),
    ),
)
