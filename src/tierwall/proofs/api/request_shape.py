"""The shape of a request and of the data that it carries, where neither a policy nor a schema says more."""

from __future__ import annotations

from msgspec import structs

from tierwall.logic.cel.unknown import STRING, STRINGS, Shape, ValueKind

_REQUIREMENT = Shape(
    (ValueKind.MAP,),
    fields={"key": STRING, "operator": STRING, "values": STRINGS},
    is_closed=True,
    required=frozenset(("key", "operator", "values")),
)
_SELECTOR = Shape((ValueKind.LIST,), inner=_REQUIREMENT)
_USER = Shape(
    (ValueKind.MAP,),
    fields={
        "username": STRING,
        "groups": STRINGS,
        "uid": STRING,
        "extra": Shape((ValueKind.MAP,), inner=STRINGS),
    },
    is_closed=True,
    required=frozenset(("username", "groups", "uid", "extra")),
)
SELECTORS = ("labelSelector", "fieldSelector")
_NAMES = ("verb", "apiGroup", "apiVersion", "resource", "subresource", "namespace", "name", "path")
REQUEST = Shape(
    (ValueKind.MAP,),
    fields={
        **dict.fromkeys(_NAMES, STRING),
        "userInfo": _USER,
        "labelSelector": _SELECTOR,
        "fieldSelector": _SELECTOR,
    },
    is_closed=True,
    required=frozenset((*_NAMES, "userInfo")),
)
_STRING_MAP = Shape((ValueKind.MAP,), inner=STRING)
_METADATA = Shape(
    (ValueKind.MAP,), fields={"name": STRING, "namespace": STRING, "labels": _STRING_MAP, "annotations": _STRING_MAP}
)
_OBJECT = Shape((ValueKind.NULL, ValueKind.MAP), fields={"metadata": _METADATA, "apiVersion": STRING, "kind": STRING})
# A namespace that exists has a name and labels that an API server accepts.
_WORD = "[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
NAME_LABEL = "kubernetes.io/metadata.name"
_LABELS = Shape(
    (ValueKind.MAP,),
    inner=Shape((ValueKind.STRING,), pattern=f"({_WORD})?"),
    keys=Shape((ValueKind.STRING,), pattern=f"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?{_WORD}"),
)
_NAMESPACE_METADATA = structs.replace(
    _METADATA,
    fields={
        **_METADATA.fields,
        "name": Shape((ValueKind.STRING,), pattern="[a-z0-9]([a-z0-9-]*[a-z0-9])?"),
        "labels": _LABELS,
    },
)
NAMESPACE = structs.replace(_OBJECT, fields={**_OBJECT.fields, "metadata": _NAMESPACE_METADATA})
# An object that is there.
SHOWN = structs.replace(_OBJECT, kinds=(ValueKind.MAP,), required=frozenset(("metadata",)))
DATA = {
    "object": _OBJECT,
    "oldObject": _OBJECT,
    "options": Shape((ValueKind.NULL, ValueKind.MAP)),
    "operation": Shape((ValueKind.NULL, ValueKind.STRING)),
    "namespaceObject": NAMESPACE,
}
