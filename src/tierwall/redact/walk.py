"""A walk through the strings of an object, which makes a copy with others in their places (docs/clusters.md#redact).

Fields that a schema has are kept. A field that it does not have gets another name, because such a field is an error;
in kinds that Tierwall only reads it is left out. The keys of maps are data, and have stand-ins as values have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, TypeAlias

from tierwall.core.catalogue import CATALOGUE
from tierwall.redact.definitions import definition_spec
from tierwall.redact.fields import KEPT_KEYS, LABEL_MAPS, TIME, TextType, text_type
from tierwall.redact.parts import field_names, foreign_parts, names_in, read_parts
from tierwall.resources.kinds.registry import Kind, find_kind, versions_of
from tierwall.resources.resource import Resource
from tierwall.resources.schema import Schema
from tierwall.resources.validity import DEFINITION, InstalledDefinition
from tierwall.values.pattern import pattern

Replacement: TypeAlias = Callable[[TextType, str], str]

# Their names are made of versions, groups and resources.
KEPT_NAMES = (DEFINITION, ("apiregistration.k8s.io", "APIService"))
# Questions about the objects, which no cluster has.
POLICY_TEST = ("tierwall.io", "PolicyTest")
# Annotations that decisions read. All others are left out.
_IGNORE, _MODE, _TOOLS = "tierwall.io/ignore", "tierwall.io/mode", "tierwall.io/tools"
_SHADOW = "shadow"
# Definitions in the groups of Kubernetes must have it: the address of a review, or a word and more.
_APPROVED = "api-approved.kubernetes.io"
_REVIEWS, _UNAPPROVED = "https://github.com/kubernetes", "unapproved"
_OWN_INSTALLATION = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
_OBJECT_META = frozenset(
    (
        *("name", "generateName", "namespace", "labels", "annotations", "ownerReferences", "finalizers"),
        *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink", "uid"),
        *("resourceVersion", "managedFields"),
    )
)
_TIMES = ("creationTimestamp", "deletionTimestamp")
_NO_UID = "00000000-0000-0000-0000-000000000000"
_POD_SECURITY = "pod-security.kubernetes.io/"
_CODE = pattern(r"(?P<code>TW[0-9]{3}):?(?P<reason>\s+\S.*)?")
_MAX_DEPTH = 200  # levels; an object that is nested deeper is refused anyway


class ObjectWalk:
    """Copies objects and replaces their strings. `definitions` has the kinds that are defined by the objects."""

    def __init__(self, replace: Replacement, definitions: Mapping[tuple[str, str], InstalledDefinition]) -> None:
        self._replace = replace
        self._definitions = definitions
        self._fields: dict[Schema, Mapping[str, Schema]] = {}
        # Of the object that is being copied: the parts that are kept beside its schema, whether all other fields are
        # errors, and fields that its definition may have.
        self._read: Set[str] = frozenset()
        self._is_strict = False
        self._defined: Set[str] = frozenset()

    def copy(self, resource: Resource) -> dict[str, Any]:
        """Return the object with other strings."""
        key, value = (resource.group, resource.kind), resource.value
        kept: dict[str, Any] = {name: value[name] for name in ("apiVersion", "kind") if name in value}
        kept |= {"metadata": self._metadata(resource)} if "metadata" in value else {}
        if key == DEFINITION:
            return kept | ({"spec": definition_spec(resource.spec)} if "spec" in value else {})
        kind = None if key == POLICY_TEST else self._kind(resource)
        is_native = kind is not None and not kind.installed
        self._read = read_parts(key) or (frozenset() if is_native else foreign_parts())
        self._is_strict = kind is not None and kind.strict
        installed = self._definitions.get(key)
        schemas = () if installed is None else (defined.schema for defined in installed.kinds.values())
        self._defined = names_in(schemas)
        rest = {name: item for name, item in value.items() if name not in ("apiVersion", "kind", "metadata")}
        return kept | self._map(rest, None if kind is None else kind.schema, "", "", 0)

    def _kind(self, resource: Resource) -> Kind | None:
        """Return the kind of an object, in its version if that is known, or as a definition among the objects says."""
        known = find_kind(resource.value.get("apiVersion"), resource.kind)
        key = resource.group, resource.kind
        known = known or next(iter(versions_of(*key).values()), None)
        if known is None and key in self._definitions:
            return self._definitions[key].kinds.get(resource.api_version)
        return known

    def _metadata(self, resource: Resource) -> dict[str, Any]:
        metadata, is_namespace = resource.metadata, (resource.group, resource.kind) == ("", "Namespace")
        copied: dict[str, Any] = {}
        if type(metadata.get("generation")) is int:
            copied["generation"] = metadata["generation"]
        for name in _TIMES:
            if isinstance(text := metadata.get(name), str):
                copied[name] = text if TIME.fullmatch(text) else self._replace(TextType.SECRET, text)
        is_kept = (resource.group, resource.kind) in KEPT_NAMES or _is_own(resource.kind, resource.name)
        sort = TextType.WORD if is_kept else TextType.NAMESPACE if is_namespace else TextType.NAME
        for name in ("name",) if metadata.get("name") else ("name", "generateName"):
            if isinstance(text := metadata.get(name), str):
                copied[name] = self._replace(sort, text)
        if isinstance(text := metadata.get("namespace"), str):
            copied["namespace"] = self._replace(TextType.NAMESPACE, text)
        if "labels" in metadata:
            labels = metadata["labels"]
            copied["labels"] = self._labels(labels) if isinstance(labels, dict) else _blank(labels)
        if annotations := self._annotations(metadata.get("annotations")):
            copied["annotations"] = annotations
        if isinstance(metadata.get("ownerReferences"), list):
            copied["ownerReferences"] = [
                self._owner(owner) for owner in metadata["ownerReferences"] if isinstance(owner, dict)
            ]
        # Fields that no object has are errors.
        return copied | {
            self._replace(TextType.OTHER, str(name)): True for name in metadata if name not in _OBJECT_META
        }

    def _owner(self, owner: Mapping[str, Any]) -> dict[str, Any]:
        copied = {name: owner[name] for name in ("apiVersion", "kind", "controller") if name in owner}
        if isinstance(owner.get("name"), str):
            copied["name"] = self._replace(TextType.NAME, owner["name"])
        return copied | ({"uid": _NO_UID} if "uid" in owner else {})

    def _labels(self, labels: Mapping[Any, Any]) -> dict[str, Any]:
        copied: dict[str, Any] = {}
        for key, value in labels.items():
            sort = TextType.WORD if str(key).startswith(_POD_SECURITY) else TextType.LABEL_VALUE
            if isinstance(value, str):
                new = self._replace(sort, value)
            else:
                # Decisions read it as the text that YAML shows.
                self._replace(TextType.SCALAR, str(value).lower())
                new = _blank(value) if isinstance(value, dict | list) else value
            copied[self._replace(TextType.LABEL_KEY, str(key))] = new
        return copied

    def _annotations(self, annotations: object) -> dict[str, Any]:
        if not isinstance(annotations, dict):
            return {}
        copied: dict[str, Any] = {}
        if isinstance(mode := annotations.get(_MODE), str):
            copied[_MODE] = mode if mode == _SHADOW else self._replace(TextType.SECRET, mode)
        if isinstance(tools := annotations.get(_TOOLS), str):
            copied[_TOOLS] = self._replace(TextType.KEPT, tools)
        if isinstance(approval := annotations.get(_APPROVED), str):
            copied[_APPROVED] = (
                approved if (approved := _approval(approval)) else self._replace(TextType.SECRET, approval)
            )
        if _IGNORE in annotations:
            lines = str(annotations[_IGNORE] or "").split("\n")
            copied[_IGNORE] = "\n".join(self._ignored(line.strip()) for line in lines if line.strip())
        return copied

    def _ignored(self, line: str) -> str:
        """Return a line that accepts a finding, without the reason."""
        match = _CODE.fullmatch(line)
        if match is None or match["code"] not in CATALOGUE:
            return self._replace(TextType.SECRET, line)
        return f"{match['code']} redacted" if match["reason"] else match["code"]

    def _map(
        self, value: Mapping[Any, Any], schema: Schema | None, path: str, parent: str, depth: int
    ) -> dict[Any, Any]:
        if depth > _MAX_DEPTH:
            return {}
        copied: dict[Any, Any] = {}
        fields = None if schema is None else self._fields_of(schema)
        is_free = schema is not None and not fields and schema.additional is None
        for key, item in value.items():
            name, place = str(key), f"{path}.{key}" if path else str(key)
            if fields is not None and name in fields:
                inner: Schema | None = fields[name]
            elif place in self._read:
                inner = None
            elif schema is not None and (schema.additional is not None or is_free or schema.preserve_unknown):
                sort = TextType.KEPT if parent in KEPT_KEYS else TextType.OTHER
                inner = schema.additional or schema
                copied[self._replace(sort, name)] = self._value(item, inner, _ANY, parent, value, place, depth + 1)
                continue
            elif self._is_strict and (name in field_names() or name in self._defined):
                # An error, but planes read of a refused policy what they can, in whatever dialect it is written.
                inner = None
            elif self._is_strict:
                copied[self._replace(TextType.OTHER, name)] = True
                continue
            else:
                continue
            copied[key] = self._value(item, inner, name, parent, value, place, depth + 1)
        return {key: item for key, item in copied.items() if item is not _REMOVED}

    def _value(
        self,
        item: Any,
        schema: Schema | None,
        field: str,
        parent: str,
        holder: Mapping[Any, Any],
        path: str,
        depth: int,
    ) -> Any:
        """Return the copy of a value; `holder` is the map that has it in `field`, and `parent` is the field of that."""
        if isinstance(item, dict):
            if field in LABEL_MAPS or (field == "selector" and _is_label_map(item)):
                return self._labels(item)
            if field == "annotations":
                return self._annotations(item)
            copied = self._map(item, schema, path, field, depth)
            return copied if copied or not item or schema is not None else _REMOVED
        if isinstance(item, list):
            items = None if schema is None else schema.items or (schema if schema.type == "" else None)
            copies = [self._item(part, items, field, parent, holder, path, depth) for part in item]
            return [copy for copy in copies if copy is not _REMOVED]
        if not isinstance(item, str):
            return item
        sort = text_type(item, field, parent, holder, schema)
        return _REMOVED if sort is TextType.REMOVED else self._replace(sort, item)

    def _item(
        self,
        item: Any,
        schema: Schema | None,
        field: str,
        parent: str,
        holder: Mapping[Any, Any],
        path: str,
        depth: int,
    ) -> Any:
        if depth > _MAX_DEPTH:
            return _REMOVED
        if isinstance(item, dict):
            return self._map(item, schema, path, field, depth + 1)
        return self._value(item, schema, field, parent, holder, path, depth + 1)

    def _fields_of(self, schema: Schema) -> Mapping[str, Schema]:
        known = self._fields.get(schema)
        if known is None:
            known = self._fields[schema] = {part.name: part.schema for part in schema.properties}
        return known


_REMOVED = object()
# The field of a value whose key is data.
_ANY = "*"


def _blank(value: Any) -> Any:
    """Return a value of the same wrong type that tells nothing."""
    if isinstance(value, str):
        return "redacted"
    return [] if isinstance(value, list) else {} if isinstance(value, dict) else value


def _approval(text: str) -> str:
    """Return the approval of a definition without what somebody has added to it, or an empty string."""
    if text.startswith(_UNAPPROVED):
        return _UNAPPROVED
    return text if text.startswith(_REVIEWS) else _REVIEWS if text.startswith(("https://", "http://")) else ""


def _is_label_map(value: Mapping[Any, Any]) -> bool:
    return all(isinstance(item, str) for item in value.values())


def _is_own(kind: str, name: str) -> bool:
    """Whether an object belongs to Tierwall's own installation, which other answers leave out."""
    return kind in _OWN_INSTALLATION and (name == "tierwall.io" or name.startswith("tierwall-"))
