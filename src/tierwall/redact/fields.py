"""The meaning of the strings of an object, by the field that holds them (docs/clusters.md#redact).

The table is by the name of a field, and by the field around it where one name has several meanings. A string of a field
that the table does not have is replaced, unless its schema lists the values that it may have.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from tierwall.resources.schema import Schema
from tierwall.values.pattern import pattern
from tierwall.values.time import parse_duration


class TextType(Enum):
    """The meaning of a string, which says what happens to it."""

    # A word of Kubernetes: a kind, a verb, a resource, a value that a schema lists.
    WORD = "word"
    # Kept, although somebody has chosen it: a path, a tool, a port. A name in it is reported.
    KEPT = "kept"
    NAME = "name"
    NAMESPACE = "namespace"
    USER = "user"
    GROUP = "group"
    HOST = "host"
    ADDRESS = "address"
    LABEL_KEY = "label key"
    LABEL_VALUE = "label value"
    # Of a header or a query parameter.
    HEADER = "header"
    # A regular expression that headers are matched with: kept.
    PATTERN = "pattern"
    # A label that is not a string: what equals it is kept.
    SCALAR = "scalar"
    # Made of names, or of nothing that decides: replaced part by part.
    OTHER = "text"
    # Replaced as a whole.
    SECRET = "secret"
    # Kept, apart from the backend that may stand before a tool: `payments/refund`.
    TOOL = "tool"
    EXPRESSION = "expression"
    ARN = "ARN"
    REMOVED = "removed"


_FIELDS = {
    TextType.NAMESPACE: "namespace namespaces targetNamespace matchNamespaces",
    TextType.NAME: """
        name serviceAccountName serviceAccount nodeName serviceName gatewayClassName sectionName resourceNames
        policyName secretName claimName ingressClassName configMapName persistentVolumeName
    """,
    TextType.HOST: "host hosts hostname hostnames domainNames externalName sni verifySubjectAltNames",
    TextType.ADDRESS: """
        ip podIP podIPs hostIP hostIPs clusterIP clusterIPs externalIPs loadBalancerIP loadBalancerSourceRanges cidr
        except networks address podCIDR podCIDRs
    """,
    TextType.LABEL_KEY: "sameLabels notSameLabels",
    TextType.SECRET: "key inline users caBundle content body message",
    TextType.REMOVED: "description",
    TextType.TOOL: "tools params",
    TextType.WORD: """
        apiVersion kind kinds group apiGroup apiGroups version verbs resources operator action type effect tier phase
        protocol policyTypes related restartPolicy
    """,
    TextType.KEPT: """
        nonResourceURLs methods method path paths pathPrefix jwksPath replaceFullPath replacePrefixMatch service scheme
        field port targetPort servicePort namedPort destinationNamedPort appProtocol authorizer model role tokenType
        remove allowHeaders exposeHeaders allowedHeaders allowedRequestHeaders disallowedRequestHeaders
        allowedResponseHeaders alpnProtocols
    """,
}
# `parent.field`: the field, and the field that holds the map around it.
_INNER_FIELDS = {
    TextType.KEPT: """
        port.name ports.name headers.name queryParams.name set.name add.name methods.name authorizers.name
        attributes.name fields.name path.value paths.value aws.serviceName
    """,
    TextType.HEADER: "headers.value queryParams.value forwardHeaderMatches.value",
    TextType.HOST: "addresses.value",
    TextType.SECRET: "set.value add.value",
    TextType.LABEL_KEY: "matchExpressions.key",
    TextType.LABEL_VALUE: "matchExpressions.values",
    TextType.OTHER: "crossAppAccess.resources oauthTokenExchange.resources",
    TextType.EXPRESSION: "cel.expression spec.expression matchConditions.expression",
}
_BY_FIELD = {field: sort for sort, fields in _FIELDS.items() for field in fields.split()}
_BY_PARENT = {tuple(place.split(".")): sort for sort, places in _INNER_FIELDS.items() for place in places.split()}
# Maps whose keys are methods, paths and headers.
KEPT_KEYS = ("methods", "routes", "headers", "addRequestHeaders")
# Maps of labels.
LABEL_MAPS = ("labels", "matchLabels", "nodeSelector")
_SUBJECTS = {"User": TextType.USER, "Group": TextType.GROUP, "ServiceAccount": TextType.NAME}
_HOST_HEADERS = ("host", ":authority")
# The type of a message, which decides how it is read.
_TYPE_HEADERS = ("content-type", "accept")
_REGEX = "RegularExpression"
_CEL, _DURATION_OR_CEL = "CELExpression", "DurationOrCEL"
# The section of an AgentgatewayBackend with one provider.
_PROVIDER, _BACKEND = "backend", "AgentgatewayBackend"
# Durations, quantities, numbers: they tell nothing about anybody.
_AMOUNT = pattern(
    r"[0-9]{1,5}(?:\.[0-9]{1,6})?|(?:[0-9]{1,6}(?:\.[0-9]{1,6})?(?:ns|us|ms|s|m|h|d|[kKMGTP]i?B?|%)){1,4}"
)
TIME = pattern(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9:.]{8,20}(?:[Zz]|[+-][0-9:]{5})")
# `arn:aws:iam::123456789012:role/deploy`: a schema demands this form.
_ARN = pattern(r"arn:aws[a-z-]*:[a-z0-9-]*:")


def text_type(text: str, field: str, parent: str, holder: Mapping[str, Any], schema: Schema | None) -> TextType:
    """Return what a string is.

    `field` holds it, or the list that it is in; `holder` is the map of that field, which `parent` holds.
    """
    if schema is not None:
        if text in schema.enum:
            return TextType.WORD
        if schema.title == _DURATION_OR_CEL and parse_duration(text) is not None:
            return TextType.WORD
        if schema.title in (_CEL, _DURATION_OR_CEL):
            return TextType.EXPRESSION
    if field == "name" and parent == "subjects":
        return _SUBJECTS.get(str(holder.get("kind")), TextType.USER)
    if field == "sectionName" and holder.get("kind") in (("Service", _BACKEND) if text == _PROVIDER else ("Service",)):
        return TextType.KEPT  # a port, or the only provider of a backend
    if field == "name" and text == _PROVIDER and parent in ("targets", "providers"):
        return TextType.KEPT
    known = _BY_PARENT.get((parent, field)) or _BY_FIELD.get(field)
    if known is TextType.HEADER:
        return _header_type(str(holder.get("name")).lower(), holder.get("type"))
    if known is TextType.ADDRESS and text == "None":
        return TextType.WORD  # a Service without an address
    if known is not None:
        return known
    if TIME.fullmatch(text) is not None:
        return TextType.WORD
    if _ARN.match(text) is not None:
        return TextType.ARN
    return TextType.WORD if _AMOUNT.fullmatch(text) is not None else TextType.OTHER


def _header_type(name: str, comparison: object) -> TextType:
    if comparison == _REGEX:
        return TextType.PATTERN
    if name in _TYPE_HEADERS:
        return TextType.KEPT
    return TextType.HOST if name in _HOST_HEADERS else TextType.HEADER
