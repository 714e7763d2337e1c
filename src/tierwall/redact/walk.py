"""A walk through the strings of an object, which makes a copy with others in their places (docs/clusters.md#redact).

Definitions are kept whole: they are kinds. Of objects of other systems only `metadata`, targets and bindings are kept,
because Tierwall reads no more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tierwall.redact.fields import LABEL_MAPS, TextType, text_type
from tierwall.resources.kinds.registry import find_kind, is_built_in
from tierwall.resources.resource import Resource
from tierwall.resources.schema import Schema

Replacement: TypeAlias = Callable[[TextType, str], str]

_DEFINITION = ("apiextensions.k8s.io", "CustomResourceDefinition")
# Their names are made of versions, groups and resources.
KEPT_NAMES = (_DEFINITION, ("apiregistration.k8s.io", "APIService"))
# Kinds without a schema that decisions read.
_READ = frozenset(
    (
        ("", "ServiceAccount"),
        ("networking.k8s.io", "Ingress"),
        ("extensions", "Ingress"),
        ("route.openshift.io", "Route"),
        ("storage.k8s.io", "VolumeAttachment"),
        ("apiregistration.k8s.io", "APIService"),
    )
)
# Questions about the objects, which no cluster has.
_POLICY_TEST = ("tierwall.io", "PolicyTest")
_FOREIGN_FIELDS = ("targetRef", "targetRefs", "targetSelectors", "policyName")
# Annotations that decisions read. All others are left out.
_ANNOTATIONS = ("tierwall.io/mode", "tierwall.io/tools")
_IGNORE = "tierwall.io/ignore"
_OWN_INSTALLATION = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
_METADATA_FIELDS = ("creationTimestamp", "deletionTimestamp", "generation")
_NO_UID = "00000000-0000-0000-0000-000000000000"
_POD_SECURITY = "pod-security.kubernetes.io/"
_MAX_DEPTH = 200  # levels; an object that is nested deeper is refused anyway


class ObjectWalk:
    """Copies objects and replaces their strings."""

    def __init__(self, replace: Replacement) -> None:
        self._replace = replace
        self._schemas: dict[Schema, Mapping[str, Schema]] = {}

    def copy(self, resource: Resource) -> dict[str, Any]:
        """Return the object with other strings."""
        key, value = (resource.group, resource.kind), resource.value
        kept: dict[str, Any] = {name: value[name] for name in ("apiVersion", "kind") if name in value}
        kept |= {"metadata": self._metadata(resource)} if "metadata" in value else {}
        if key == _DEFINITION:
            return kept | {name: value[name] for name in ("spec",) if name in value}
        version = find_kind(value.get("apiVersion"), value.get("kind"))
        if key == _POLICY_TEST or (version is None and not is_built_in(*key) and key not in _READ):
            spec = {name: resource.spec[name] for name in _FOREIGN_FIELDS if name in resource.spec}
            return kept | ({"spec": self._map(spec, None, "spec", 0)} if spec else {})
        rest = {name: item for name, item in value.items() if name not in ("apiVersion", "kind", "metadata")}
        return kept | self._map(rest, None if version is None else version.schema, "", 0)

    def _metadata(self, resource: Resource) -> dict[str, Any]:
        metadata, is_namespace = resource.metadata, (resource.group, resource.kind) == ("", "Namespace")
        copied: dict[str, Any] = {name: metadata[name] for name in _METADATA_FIELDS if name in metadata}
        name, namespace = metadata.get("name"), metadata.get("namespace")
        if isinstance(name, str):
            is_kept = (resource.group, resource.kind) in KEPT_NAMES or _is_own(resource.kind, name)
            sort = TextType.KEPT if is_kept else TextType.NAMESPACE if is_namespace else TextType.NAME
            copied["name"] = self._replace(sort, name)
        if isinstance(namespace, str):
            copied["namespace"] = self._replace(TextType.NAMESPACE, namespace)
        if isinstance(metadata.get("labels"), dict):
            copied["labels"] = self._labels(metadata["labels"])
        if annotations := self._annotations(metadata.get("annotations")):
            copied["annotations"] = annotations
        if isinstance(metadata.get("ownerReferences"), list):
            copied["ownerReferences"] = [
                self._map(owner, None, "ownerReferences", 0) | ({"uid": _NO_UID} if "uid" in owner else {})
                for owner in metadata["ownerReferences"]
                if isinstance(owner, dict)
            ]
        return copied

    def _labels(self, labels: Mapping[Any, Any]) -> dict[str, Any]:
        copied: dict[str, Any] = {}
        for key, value in labels.items():
            sort = TextType.KEPT if str(key).startswith(_POD_SECURITY) else TextType.LABEL_VALUE
            new = self._replace(sort, value) if isinstance(value, str) else value
            copied[self._replace(TextType.LABEL_KEY, str(key))] = new
        return copied

    def _annotations(self, annotations: object) -> dict[str, Any]:
        if not isinstance(annotations, dict):
            return {}
        copied = {key: annotations[key] for key in _ANNOTATIONS if key in annotations}
        ignored = annotations.get(_IGNORE)
        if isinstance(ignored, str) and ignored.split():
            code, *reason = ignored.split()
            copied[_IGNORE] = " ".join((code, *(["redacted"] if reason else [])))
        return copied

    def _map(self, value: Mapping[str, Any], schema: Schema | None, parent: str, depth: int) -> dict[str, Any]:
        if depth > _MAX_DEPTH:
            return {}
        copied: dict[str, Any] = {}
        for key, item in value.items():
            inner = self._inner(schema, key)
            if isinstance(item, dict):
                if key in LABEL_MAPS or (key == "selector" and _is_label_map(item)):
                    copied[key] = self._labels(item)
                elif key == "annotations":
                    copied[key] = self._annotations(item)
                else:
                    copied[key] = self._map(item, inner, str(key), depth + 1)
            elif isinstance(item, list):
                items = None if inner is None else inner.items
                copied[key] = [self._item(part, items, str(key), parent, value, depth + 1) for part in item]
            elif isinstance(item, str):
                sort = text_type(item, str(key), parent, value, inner)
                if sort is not TextType.REMOVED:
                    copied[key] = self._replace(sort, item)
            else:
                copied[key] = item
        return copied

    def _item(
        self, item: Any, schema: Schema | None, field: str, parent: str, holder: Mapping[str, Any], depth: int
    ) -> Any:
        if isinstance(item, dict):
            return self._map(item, schema, field, depth)
        if isinstance(item, list):
            inner = None if schema is None else schema.items
            items = item if depth <= _MAX_DEPTH else ()
            return [self._item(part, inner, field, parent, holder, depth + 1) for part in items]
        return self._replace(text_type(item, field, parent, holder, schema), item) if isinstance(item, str) else item

    def _inner(self, schema: Schema | None, key: str) -> Schema | None:
        if schema is None:
            return None
        known = self._schemas.get(schema)
        if known is None:
            known = self._schemas[schema] = {part.name: part.schema for part in schema.properties}
        return known.get(key, schema.additional)


def _is_label_map(value: Mapping[Any, Any]) -> bool:
    return all(isinstance(item, str) for item in value.values())


def _is_own(kind: str, name: str) -> bool:
    """Whether an object belongs to Tierwall's own installation, which other answers leave out."""
    return kind in _OWN_INSTALLATION and (name == "tierwall.io" or name.startswith("tierwall-"))
