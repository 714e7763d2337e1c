"""The meaning of the variables of every plane and of the arguments of functions (docs/clusters.md#redact)."""

from __future__ import annotations

from collections.abc import Mapping

from tierwall.redact.fields import TextType

_OBJECTS = ("object", "oldObject", "namespaceObject")
_REQUESTS = ("request", "impersonatedRequest")
PATHS: Mapping[tuple[str, ...], TextType] = {
    **{(root, "namespace"): TextType.NAMESPACE for root in _REQUESTS},
    **{(root, "name"): TextType.NAME for root in _REQUESTS},
    **{(root, "userInfo", field): TextType.USER for root in _REQUESTS for field in ("username", "uid")},
    ("request", "uid"): TextType.USER,
    ("request", "user"): TextType.USER,
    ("request", "resourceAttributes", "namespace"): TextType.NAMESPACE,
    ("request", "resourceAttributes", "name"): TextType.NAME,
    ("request", "host"): TextType.HOST,
    ("request", "mcp"): TextType.KEPT,
    ("source", "address"): TextType.ADDRESS,
    ("source", "identity", "namespace"): TextType.NAMESPACE,
    ("source", "identity", "serviceAccount"): TextType.NAME,
    ("source", "identity", "trustDomain"): TextType.HOST,
    **{("jwt", claim): TextType.USER for claim in ("sub", "email", "preferred_username", "azp", "client_id")},
    ("jwt", "iss"): TextType.HOST,
    ("jwt", "aud"): TextType.HOST,
    ("basicAuth", "username"): TextType.USER,
    ("mcp", "tool", "name"): TextType.KEPT,
    ("mcp", "prompt", "name"): TextType.KEPT,
    ("operation",): TextType.KEPT,
    **{
        (root, field): TextType.KEPT
        for root in _REQUESTS
        for field in (
            *("verb", "resource", "apiGroup", "apiVersion", "subresource", "path", "url_path", "method"),
            *("time", "kind", "operation", "uri", "version", "contentType", "scheme", "isResourceRequest"),
        )
    },
    **{
        ("request", "resourceAttributes", field): TextType.KEPT
        for field in ("verb", "resource", "group", "version", "subresource")
    },
    ("request", "nonResourceAttributes"): TextType.KEPT,
    **{(root, "metadata", "name"): TextType.NAME for root in _OBJECTS},
    **{(root, "metadata", "namespace"): TextType.NAMESPACE for root in _OBJECTS},
    **{(root, field): TextType.KEPT for root in _OBJECTS for field in ("apiVersion", "kind")},
}
LISTS: Mapping[tuple[str, ...], TextType] = {
    **{(root, "userInfo", "groups"): TextType.GROUP for root in _REQUESTS},
    ("request", "groups"): TextType.GROUP,
}
# Maps with fixed keys: what their values are.
MAPS: Mapping[tuple[str, ...], TextType] = {("request", "headers"): TextType.HEADER}
LABELS = frozenset((root, "metadata", "labels") for root in _OBJECTS)
# The arguments of functions that take names.
ARGUMENTS: Mapping[str, tuple[TextType, ...]] = {
    "namespace": (TextType.NAMESPACE,),
    "name": (TextType.NAME,),
    "serviceAccount": (TextType.NAMESPACE, TextType.NAME),
    "labelSelector": (TextType.OTHER,),
    "fieldSelector": (TextType.OTHER,),
    "group": (TextType.KEPT,),
    "resource": (TextType.KEPT,),
    "subresource": (TextType.KEPT,),
    "check": (TextType.KEPT,),
    "path": (TextType.KEPT,),
    **dict.fromkeys(("ip", "cidr", "isIP", "isCIDR", "containsIP", "containsCIDR"), (TextType.ADDRESS,)),
}
