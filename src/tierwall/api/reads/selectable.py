"""The fields that a resource selects by (docs/api.md#reads).

Every resource selects by `metadata.name`, and by `metadata.namespace` if its objects are in namespaces. The rest is in
the API server's code, one function for each kind (`ToSelectableFields` and its like, Kubernetes 1.36), or in
`selectableFields` of a CustomResourceDefinition. A selector by any other field is refused with 400 after authorization,
so it says nothing here. Left out are fields that stand for several (`status.podIPs`, `source` of events).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import list_of_maps
from tierwall.resources.snapshot import Snapshot

Path: TypeAlias = tuple[str, ...]
# Field types other than string follow a colon.
_OF_KUBERNETES: Final = """
pods spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName spec.hostNetwork:boolean status.phase
 status.podIP status.nominatedNodeName
nodes spec.unschedulable:boolean
namespaces status.phase
secrets type
services spec.clusterIP spec.type
replicationcontrollers status.replicas:integer
events involvedObject.kind involvedObject.namespace involvedObject.name involvedObject.uid involvedObject.apiVersion
 involvedObject.resourceVersion involvedObject.fieldPath reason reportingComponent type
events.events.k8s.io regarding.kind regarding.namespace regarding.name regarding.uid regarding.apiVersion
 regarding.resourceVersion regarding.fieldPath reason reportingController type
replicasets.apps status.replicas:integer
certificatesigningrequests.certificates.k8s.io spec.signerName
clustertrustbundles.certificates.k8s.io spec.signerName
podcertificaterequests.certificates.k8s.io spec.signerName spec.podName spec.nodeName
resourceslices.resource.k8s.io spec.nodeName spec.driver
"""


class FieldType(StrEnum):
    """The types that fields of selectors have."""

    STRING = "string"
    BOOLEAN = "boolean"
    INTEGER = "integer"


_ZEROS: Final = {FieldType.STRING: "", FieldType.BOOLEAN: "false", FieldType.INTEGER: "0"}


class SelectableField(msgspec.Struct, frozen=True):
    """A field: its path, its type, and how a selector writes that it is not there."""

    path: Path
    type: FieldType = FieldType.STRING
    absent: str = ""
    # Whether it, or an object around it, may be null.
    may_be_null: bool = False

    @property
    def name(self) -> str:
        """The field as selectors name it."""
        return ".".join(self.path)

    def text(self, value: object) -> str:
        """Return the value as selectors compare it."""
        if value is None:
            return self.absent
        return str(value).lower() if isinstance(value, bool) else str(value)


NAME = SelectableField(("metadata", "name"))
NAMESPACE = SelectableField(("metadata", "namespace"))
_ALWAYS = (NAME, NAMESPACE)


class SelectableFields(msgspec.Struct, frozen=True):
    """The fields by group and resource, beside those of metadata."""

    fields: Mapping[tuple[str, str, str], tuple[SelectableField, ...]] = {}

    def of(self, group: str, version: str, resource: str) -> tuple[SelectableField, ...]:
        """Return the fields that a resource selects by in a version."""
        known = _BUILT_IN.get((group, resource), ())
        return (*_ALWAYS, *(known or self.fields.get((group, version, resource), ())))


def _built_in() -> Iterator[tuple[tuple[str, str], tuple[SelectableField, ...]]]:
    for line in _OF_KUBERNETES.strip().replace("\n ", " ").split("\n"):
        name, *fields = line.split()
        resource, _, group = name.partition(".")
        yield (group, resource), tuple(map(_field, fields))


def _field(word: str) -> SelectableField:
    path, _, type_name = word.partition(":")
    field_type = FieldType(type_name or "string")
    return SelectableField(tuple(path.split(".")), field_type, _ZEROS[field_type])


_BUILT_IN: Final = dict(_built_in())
OF_KUBERNETES: Final = SelectableFields()


@per_snapshot
def selectable_fields(snapshot: Snapshot) -> SelectableFields:
    """Return the fields that resources select by on the API server that has the definitions of a snapshot."""
    defined: dict[tuple[str, str, str], tuple[SelectableField, ...]] = {}
    for definition in snapshot.of_kind("apiextensions.k8s.io", "CustomResourceDefinition"):
        names, group = definition.spec.get("names"), definition.spec.get("group")
        plural = names.get("plural") if isinstance(names, dict) else None
        for version in list_of_maps(definition.spec.get("versions")):
            fields = tuple(_defined(version))
            if fields and isinstance(plural, str) and isinstance(group, str):
                defined[group, str(version.get("name")), plural] = fields
    return SelectableFields(defined) if defined else OF_KUBERNETES


def _defined(version: Mapping[str, Any]) -> Iterator[SelectableField]:
    schema = version.get("schema")
    root = schema.get("openAPIV3Schema") if isinstance(schema, dict) else None
    for selected in list_of_maps(version.get("selectableFields")):
        text = selected.get("jsonPath")
        if not isinstance(text, str) or not text.startswith("."):
            continue
        node: Any = root
        path = tuple(text[1:].split("."))
        for name in path:
            properties = node.get("properties") if isinstance(node, dict) else None
            node = properties.get(name) if isinstance(properties, dict) else None
        type_name = node.get("type") if isinstance(node, dict) else None
        if isinstance(type_name, str) and type_name in FieldType.__members__.values() and path[0] != "metadata":
            yield SelectableField(path, FieldType(type_name), "", may_be_null=True)
