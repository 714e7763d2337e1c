"""The Namespaces that conditions read as `namespaceObject`: of the API server, or among the followed objects.

An AdmissionReview does not carry the namespace of its object. As in ValidatingAdmissionPolicy, the variable is null
for objects that are in no namespace, Namespaces included (docs/authorizer.md#the-namespace-of-an-object).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import UNSET

from tierwall.api.algebra.request import Attributes
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# The API server sets it on every Namespace.
NAME_LABEL = "kubernetes.io/metadata.name"
_NONE: Final[Mapping[str, Resource]] = MappingProxyType({})


class NamespaceIndex:
    """Namespaces by name. `live` are those that the API server has at any time: they count before all others."""

    def __init__(self, snapshot: Snapshot | None = None, live: Mapping[str, Resource] = _NONE) -> None:
        self._live = live
        self._namespaces: dict[str, Resource] = {}
        if snapshot is not None:
            self._namespaces = {namespace.name: namespace for namespace in snapshot.of_kind("", "Namespace")}

    def object_of(self, attributes: Attributes) -> Any:
        """Return the Namespace that a request is in: None for a request in no namespace, UNSET if it is not known."""
        name = attributes.namespace
        if not name or (not attributes.group and attributes.resource == "namespaces"):
            return None
        namespace = self._live.get(name) or self._namespaces.get(name)
        if namespace is None:
            return UNSET
        metadata = namespace.value.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        labels = metadata.get("labels")
        labels = {**(labels if isinstance(labels, dict) else {}), NAME_LABEL: name}
        return {**namespace.value, "metadata": {**metadata, "labels": labels}}


NO_NAMESPACES = NamespaceIndex()
