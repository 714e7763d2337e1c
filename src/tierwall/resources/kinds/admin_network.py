"""The administrators' network policies (`policy.networking.k8s.io`): v1alpha1, and ClusterNetworkPolicy of v1alpha2.

v1alpha1 is read in two dialects: the flat peers that shipped from v0.1.3 on (`namespaces` is a label selector) and the
nested peers of KEP-2091 and v0.1.0 to v0.1.2 (`namespaces` holds one of namespaceSelector, sameLabels, notSameLabels,
related). Limits and rules are those of the published experimental CRDs; what the prose asks for but no CRD enforces is
a warning.
"""

from tierwall.resources.kinds.kind import Column, Kind
from tierwall.resources.kinds.meta import conditions, crd_label_selector
from tierwall.resources.schema import (
    Property,
    Rule,
    Schema,
    array,
    at_most_one_of,
    enum,
    extend,
    integer,
    obj,
    optional,
    required,
    rule,
    string,
    warning,
)

_GROUP = "policy.networking.k8s.io"
_port_value = integer(minimum=1, maximum=65535, format="int32")
_protocol = string(
    warning("self in ['TCP', 'UDP', 'SCTP']", "protocol is none of TCP, UDP and SCTP; nothing will match it"),
    default="TCP",
)

_port = obj(
    optional(
        "portNumber",
        obj(required("port", _port_value), required("protocol", _protocol)),
        "One port of one protocol.",
    ),
    optional(
        "portRange",
        obj(
            required("start", _port_value),
            required("end", _port_value),
            optional("protocol", _protocol),
            warning("self.start <= self.end", "start is greater than end; no port will match", field_path=".end"),
        ),
        "The ports from `start` to `end`, both included.",
    ),
    optional("namedPort", string(), "A port by its name in the pod."),
    min_properties=1,
    max_properties=1,
)
_ports = array(_port, min_items=1, max_items=100)

_NESTED = ("namespaceSelector", "sameLabels", "notSameLabels", "related")
_related = string(
    rule("self.lowerAscii() in ['self', 'notself']", "must be Self or NotSelf", hint="`Self` or `NotSelf`"),
    warning("self in ['Self', 'NotSelf']", "is read in any case, but should be written Self or NotSelf"),
    max_length=16,
)
_label_keys = array(string(max_length=317), max_items=100)
_nested_fields = (
    optional("namespaceSelector", crd_label_selector, "Namespaces by label."),
    optional("sameLabels", _label_keys, "Namespaces with the same values of these labels as the subject's."),
    optional("notSameLabels", _label_keys, "Namespaces where a value of these labels differs from the subject's."),
    optional("related", _related, "Self: the subject's own namespace; NotSelf: all others."),
)
# `namespaces` of a peer: a label selector (flat), or exactly one of the nested fields.
_namespaces = extend(
    crd_label_selector,
    *_nested_fields,
    at_most_one_of(*_NESTED),
    rule(
        "!(has(self.matchLabels) || has(self.matchExpressions)) || !(has(self.namespaceSelector) || "
        "has(self.sameLabels) || has(self.notSameLabels) || has(self.related))",
        "a label selector may not be mixed with namespaceSelector, sameLabels, notSameLabels or related",
        hint="put matchLabels and matchExpressions under namespaceSelector",
    ),
)
_nested_namespaces = obj(*_nested_fields, min_properties=1, max_properties=1)

_pod_selector = required("podSelector", crd_label_selector, "Pods by label; empty selects all.")
_pods_subject = obj(required("namespaceSelector", crd_label_selector, "Namespaces; empty selects all."), _pod_selector)
_pods = obj(
    optional("namespaceSelector", crd_label_selector, "Namespaces by label; empty selects all."),
    optional("namespaces", _nested_namespaces, "The nested dialect's way to select namespaces."),
    _pod_selector,
    rule(
        "has(self.namespaceSelector) || has(self.namespaces)",
        "namespaceSelector must be specified, even if empty",
        field_path=".namespaceSelector",
        reason="FieldValueRequired",
    ),
    at_most_one_of("namespaceSelector", "namespaces"),
)

_domain = string(
    warning("!self.matches('[\\\\[\\\\]^_`\\\\\\\\]')", "contains a character that no domain name has"),
    pattern=r"^(\*\.)?([a-zA-z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.)+[a-zA-z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.?$",
)
_network = string(rule("isCIDR(self)", "Invalid CIDR format provided"), max_length=43)
_networks = optional(
    "networks",
    array(_network, min_items=1, max_items=25, list_type="set"),
    "Addresses, inside and outside the cluster.",
)
_nodes = optional("nodes", crd_label_selector, "Nodes by label.")
_domains = optional(
    "domainNames",
    array(_domain, min_items=1, max_items=25, list_type="set"),
    "Names outside; `*.` stands for subdomains.",
)


def _union(*fields: Property) -> Schema:
    return obj(*fields, min_properties=1, max_properties=1)


def _subject(pods: Schema) -> Property:
    selectors = _union(
        optional("namespaces", crd_label_selector, "All pods of these namespaces; empty selects all."),
        optional("pods", pods, "Some pods of some namespaces."),
    )
    return required("subject", selectors, "The pods that the policy is about. Host-network pods never are.")


def _named_port_rule(peers: str, list_name: str, item: str, port_field: str) -> Rule:
    tests = " || ".join(f"has(peer.{name})" for name in peers.split("/"))
    return rule(
        f"!(self.to.exists(peer, {tests}) && has(self.{list_name}) && "
        f"self.{list_name}.exists({item}, has({item}.{port_field})))",
        f"{peers} peer cannot be set with namedPorts since there are no namedPorts for {peers}",
    )


def _rules(actions: tuple[str, ...], direction: str, peer: Schema, ports: Property, limit: int, *more: Rule) -> Schema:
    one = obj(
        optional("name", string(max_length=100), "A name for reports; best unique in the policy."),
        required("action", enum(*actions), "What happens to traffic that matches."),
        required(direction, array(peer, min_items=1, max_items=limit), "Any of these peers."),
        ports,
        *more,
    )
    return array(one, max_items=limit)


def _spec(baseline: bool) -> Schema:
    actions = ("Allow", "Deny") if baseline else ("Allow", "Deny", "Pass")
    flat = (optional("namespaces", _namespaces, "All pods of these namespaces."), optional("pods", _pods, "Some pods."))
    ports = optional(
        "ports",
        _ports,
        "Any of these ports; every port and protocol if left out.",
        hint="a list such as `[{portNumber: {protocol: TCP, port: 8080}}]`",
    )
    outward = (*flat, _networks, _nodes) if baseline else (*flat, _networks, _nodes, _domains)
    named = _named_port_rule(
        "networks/nodes" if baseline else "networks/nodes/domainNames", "ports", "port", "namedPort"
    )
    domains = warning(
        "self.action == 'Allow' || !self.to.exists(peer, has(peer.domainNames))",
        "domainNames are only meant for Allow rules",
    )
    priority = required(
        "priority", integer(minimum=0, maximum=1000, format="int32"), "Smaller is looked at first; 0 to 1000."
    )
    return obj(
        *(() if baseline else (priority,)),
        _subject(_pods_subject),
        optional("ingress", _rules(actions, "from", _union(*flat), ports, 100), "Rules in order of precedence."),
        optional(
            "egress",
            _rules(actions, "to", _union(*outward), ports, 100, named, *(() if baseline else (domains,))),
            "Rules in order of precedence.",
        ),
    )


def _cluster_spec() -> Schema:
    port_range = obj(
        required("start", _port_value),
        required("end", _port_value),
        rule("self.start < self.end", "Start port must be less than End port"),
    )
    port = _union(optional("number", _port_value, "One port."), optional("range", port_range, "A range of ports."))
    transport = obj(optional("destinationPort", port, "The ports at the destination."), min_properties=1)
    protocol = _union(
        optional("tcp", transport),
        optional("udp", transport),
        optional("sctp", transport),
        optional("destinationNamedPort", string(), "A port by its name in the destination pod."),
    )
    protocols = optional(
        "protocols", array(protocol, min_items=1, max_items=25), "Any of these; every protocol if left out."
    )
    pods = obj(
        optional("namespaceSelector", crd_label_selector, "Namespaces; all if left out or empty."), _pod_selector
    )
    flat = (
        optional("namespaces", crd_label_selector, "All pods of these namespaces."),
        optional("pods", pods, "Some pods."),
    )
    actions = ("Accept", "Deny", "Pass")
    named = _named_port_rule("networks/nodes/domainNames", "protocols", "protocol", "destinationNamedPort")
    domains = warning(
        "self.action == 'Accept' || !self.to.exists(peer, has(peer.domainNames))",
        "domainNames are only meant for Accept rules",
    )
    outward = _union(*flat, _networks, _nodes, _domains)
    return obj(
        required("tier", enum("Admin", "Baseline"), "Before NetworkPolicies, or after them."),
        required("priority", integer(minimum=0, maximum=1000, format="int32"), "Within the tier; smaller comes first."),
        _subject(pods),
        optional("ingress", _rules(actions, "from", _union(*flat), protocols, 25), "Rules in order of precedence."),
        optional(
            "egress", _rules(actions, "to", outward, protocols, 25, named, domains), "Rules in order of precedence."
        ),
    )


_status = optional("status", obj(required("conditions", conditions)), "What implementations report.")
_age = Column("Age", "date", ".metadata.creationTimestamp")
_priority_column = Column("Priority", "string", ".spec.priority")

KINDS = (
    Kind(
        group=_GROUP,
        version="v1alpha1",
        kind="AdminNetworkPolicy",
        plural="adminnetworkpolicies",
        scope="Cluster",
        short_names=("anp",),
        columns=(_priority_column, _age),
        status_subresource=True,
        description="Rules of the cluster's administrators that no NetworkPolicy can overrule.",
        schema=obj(required("spec", _spec(baseline=False)), _status),
    ),
    Kind(
        group=_GROUP,
        version="v1alpha1",
        kind="BaselineAdminNetworkPolicy",
        plural="baselineadminnetworkpolicies",
        scope="Cluster",
        short_names=("banp",),
        columns=(_age,),
        status_subresource=True,
        description="The defaults, for traffic that no NetworkPolicy is about. There is only one, called `default`.",
        schema=obj(
            required("spec", _spec(baseline=True)),
            _status,
            rule(
                "self.metadata.name == 'default'",
                'Only one baseline admin network policy with metadata.name="default" can be created in the cluster',
                hint="name it `default`",
            ),
        ),
    ),
    Kind(
        group=_GROUP,
        version="v1alpha2",
        kind="ClusterNetworkPolicy",
        plural="clusternetworkpolicies",
        scope="Cluster",
        short_names=("cnp",),
        columns=(Column("Tier", "string", ".spec.tier"), _priority_column, _age),
        status_subresource=True,
        description="Administrators' rules before (tier Admin) or after (tier Baseline) NetworkPolicies.",
        schema=obj(required("spec", _cluster_spec()), _status),
    ),
)
