"""The kinds that a question needs, and how much of each object (docs/clusters.md#reading): `can-i` reads no pods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from tierwall.cluster.shapes import (
    ApiObject,
    DefinitionObject,
    MetadataObject,
    NodeObject,
    PodObject,
    ReferringPodObject,
    SpecObject,
)
from tierwall.resources.foreign import kinds_of_plane
from tierwall.resources.plane_kinds import kinds_read
from tierwall.resources.workloads import WORKLOADS

KindKey: TypeAlias = tuple[str, str]

_DEFINITION: KindKey = ("apiextensions.k8s.io", "CustomResourceDefinition")
_SHAPES: dict[KindKey, type[Any]] = {
    ("", "Pod"): PodObject,
    ("", "Node"): NodeObject,
    ("", "ServiceAccount"): MetadataObject,
    **dict.fromkeys(WORKLOADS, MetadataObject),
    _DEFINITION: DefinitionObject,
}
# A question about a path asks other planes.
_ASKED: dict[str, tuple[str, ...]] = {"path": ("network", "tool")}
# The Node authorizer follows what pods refer to, and admission judges by schemas. No other plane looks at these.
_MORE: dict[str, tuple[KindKey, type[Any]]] = {
    "node": (("", "Pod"), ReferringPodObject),
    "admit": (_DEFINITION, ApiObject),
}


def wanted_kinds(planes: Iterable[str]) -> dict[KindKey, type[Any]]:
    """Return the kinds that questions about some planes need, with the shape of their objects."""
    planes = tuple(dict.fromkeys(part for plane in planes for part in _ASKED.get(plane, (plane,))))
    return _with_shapes(planes, [key for plane in planes for key in (*kinds_read(plane), *kinds_of_plane(plane))])


def followed_kinds(planes: Iterable[str], has_files: bool) -> dict[KindKey, type[Any]]:
    """Return the kinds that engines of some planes enforce (docs/clusters.md#what-they-need).

    Policies of other systems are not enforced, and workloads matter only if files may replace them. Whatever is
    enforced is judged by admission too, which needs definitions with their schemas.
    """
    planes = tuple(planes)
    left_out = () if has_files else WORKLOADS
    keys = [key for plane in planes for key in kinds_read(plane) if key not in left_out]
    shapes = _with_shapes(planes, keys, SpecObject)
    return shapes | {_DEFINITION: SpecObject} if _DEFINITION in shapes else shapes


def _with_shapes(
    planes: Iterable[str], keys: Iterable[KindKey], usual: type[Any] = ApiObject
) -> dict[KindKey, type[Any]]:
    return {key: _SHAPES.get(key, usual) for key in keys} | dict(_MORE[plane] for plane in planes if plane in _MORE)
