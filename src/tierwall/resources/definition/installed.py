"""What the CustomResourceDefinitions among the objects say, and what an API server with them has against an object.

A definition that an API server would refuse says nothing (docs/definitions.md#a-definition-that-is-refused).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tierwall.resources.admission import Problem, admit, with_defaults
from tierwall.resources.admission.admit import unknown_kind
from tierwall.resources.kinds.kind import Kind, read_kinds
from tierwall.resources.kinds.registry import find_kind, versions_of
from tierwall.resources.once import per_resource, per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import KindKey, Snapshot

DEFINITION: KindKey = ("apiextensions.k8s.io", "CustomResourceDefinition")


class Definition(msgspec.Struct, frozen=True, eq=False):
    """A CustomResourceDefinition among the objects."""

    name: str
    key: KindKey
    kinds: Mapping[str, Kind]  # by apiVersion; none if an API server would refuse the definition

    def judge(self, document: dict[str, Any]) -> list[Problem]:
        """What an API server with this definition has against an object of its kind."""
        api_version = document["apiVersion"]
        kind = self.kinds.get(api_version)
        if kind is not None and kind.served:
            return admit(document, kind)
        served = " and ".join(f"`{version}`" for version, kind in self.kinds.items() if kind.served) or "no version"
        return [unknown_kind(api_version, self.key[1], f"CustomResourceDefinition/{self.name} serves {served}")]


@per_snapshot
def definitions(snapshot: Snapshot) -> Mapping[KindKey, Definition]:
    """The definitions among the objects, by the group and kind that they define. Of several the oldest counts."""
    found: dict[KindKey, Definition] = {}
    for resource in sorted(snapshot.of_kind(*DEFINITION), key=lambda resource: resource.seniority):
        definition = definition_in(resource)
        # What an API server has built in it does not take from a definition.
        if definition is not None and all(kind.is_crd for kind in versions_of(*definition.key).values()):
            found.setdefault(definition.key, definition)
    return found


@per_resource
def definition_in(resource: Resource) -> Definition | None:
    """What a CustomResourceDefinition defines; None if it does not say of which kind it is."""
    spec = resource.spec
    names = spec.get("names")
    group, kind = spec.get("group"), names.get("kind") if isinstance(names, dict) else None
    if not isinstance(group, str) or not isinstance(kind, str):
        return None
    kinds: dict[str, Kind] = {}
    if not any(problem.refuses for problem in admit(resource.value)):
        versions = read_kinds(with_defaults(resource.value), installed=True)
        kinds = {version.api_version: version for version in versions}
    return Definition(resource.name, (group, kind), kinds)


def definition_of(snapshot: Snapshot, resource: Resource) -> Definition | None:
    """The definition among the objects that an object is judged by; the same one as long as it says the same."""
    return definitions(snapshot).get((resource.group, resource.kind))


def judge(snapshot: Snapshot, document: Any) -> list[Problem]:
    """What an API server with the definitions of this snapshot has against an object."""
    definition = None
    if isinstance(document, dict):
        api_version, kind = document.get("apiVersion"), document.get("kind")
        if isinstance(api_version, str) and isinstance(kind, str):
            definition = definitions(snapshot).get((api_version.rpartition("/")[0], kind))
    return admit(document) if definition is None or not definition.kinds else definition.judge(document)


def is_judged(snapshot: Snapshot, resource: Resource) -> bool:
    """Whether the kind of an object is known, to Tierwall or by a definition that can be used."""
    if find_kind(resource.api_version, resource.kind) is not None:
        return True
    definition = definition_of(snapshot, resource)
    return definition is not None and bool(definition.kinds)
