"""No text that somebody chose is left in redacted objects, in any form, except what the page says is kept
(docs/clusters.md#redact)."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.redact.renamed import snapshot_of
from tierwall.redact.redaction import redact
from tierwall.resources.kinds.registry import Kind, all_kinds
from tierwall.resources.schema import Schema

Object = dict[str, Any]
MARK = re.compile(r"zq[0-9]{5}zq", re.IGNORECASE)
# The fields that may hold marks afterwards: kinds, verbs and resources, and what rules match besides names.
KEPT = frozenset(
    (
        *("kind", "group", "apiGroup", "apiGroups", "version", "apiVersion", "verbs", "resources", "operator"),
        *("action", "type", "protocol", "effect", "phase", "tier", "policyTypes", "related", "restartPolicy"),
        *("nonResourceURLs", "method", "methods", "service", "path", "paths", "pathPrefix", "jwksPath", "scheme"),
        *("replaceFullPath", "replacePrefixMatch", "field", "port", "targetPort", "namedPort", "appProtocol"),
        *("destinationNamedPort", "authorizer", "model", "role", "tokenType", "remove", "allowHeaders"),
        *("exposeHeaders", "allowedHeaders", "allowedRequestHeaders", "disallowedRequestHeaders"),
        *("allowedResponseHeaders", "alpnProtocols", "tools", "params"),
    )
)
KEPT_BELOW = frozenset(
    (
        *("ports.name", "headers.name", "queryParams.name", "set.name", "add.name", "authorizers.name"),
        *("methods.name", "path.value", "paths.value", "aws.serviceName"),
    )
)


class Marks:
    """Unique texts, each with the place where it was put."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}
        self._numbers = count()

    def new(self, place: str) -> str:
        mark = f"zq{next(self._numbers):05}zq"
        self.places[mark] = place
        return mark

    def left_in(self, value: Any) -> list[str]:
        """Return the places of all marks that are left in a value: plain, in another case, or in base64."""
        text = yaml.safe_dump(value)
        words = [text, *(_decoded(word) for word in re.findall(r"[A-Za-z0-9+/=_-]{8,}", text))]
        left = {match.lower() for word in words for match in MARK.findall(word)}
        return sorted(self.places[mark] for mark in left)


def _decoded(word: str) -> str:
    try:
        return base64.b64decode(word, validate=True).decode("latin-1")
    except ValueError:
        return ""


def filled(schema: Schema, marks: Marks, path: tuple[str, ...], above: tuple[Schema, ...] = ()) -> Any:
    """Return a value with a mark in every string, key and unknown field that a schema can have."""
    if above.count(schema) > 1 or len(path) > 16:
        return None
    inside = (*above, schema)
    place = ".".join(path)
    if schema.title in ("CELExpression", "DurationOrCEL") or path[-1:] == ("expression",):
        name, other = marks.new(place), marks.new(f"{place} comment")
        return f'request.namespace == "{name}" // {other}\n'
    if schema.properties or schema.additional is not None or schema.type == "object":
        value: Object = {
            part.name: filled(part.schema, marks, (*path, part.name), inside)
            for part in schema.properties
            if part.name != "metadata" or len(path) > 0
        }
        if schema.additional is not None:
            value[marks.new(f"{place} key")] = filled(schema.additional, marks, (*path, "*"), inside)
        else:
            unknown = {marks.new(f"{place} unknown"): [marks.new(f"{place} unknown")]}
            value[marks.new(f"{place} unknown key")] = unknown
        return {key: item for key, item in value.items() if item is not None}
    if schema.type == "array" and schema.items is not None:
        item = filled(schema.items, marks, path, inside)
        return [item] if item is not None else None
    if schema.type == "array":
        return [marks.new(place)]
    return marks.new(place) if schema.type in ("string", "") else None


def marked_metadata(marks: Marks, namespace: str = "") -> Object:
    annotations = {
        "kubectl.kubernetes.io/last-applied-configuration": marks.new("metadata.annotations"),
        marks.new("metadata.annotations key"): marks.new("metadata.annotations"),
        "tierwall.io/mode": marks.new("metadata.annotations mode"),
        "tierwall.io/ignore": f"TW204 {marks.new('reason')}\nTW205: {marks.new('reason')}\n{marks.new('no code')} x",
    }
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": marks.new("owner"), "uid": marks.new("owner uid")}
    return {
        "name": marks.new("metadata.name"),
        **({"namespace": namespace} if namespace else {}),
        "generateName": marks.new("metadata.generateName"),
        "labels": {marks.new("label key"): marks.new("label"), f"app.kubernetes.io/{marks.new('k8s label')}": "x"},
        "annotations": annotations,
        "ownerReferences": [owner | {marks.new("owner key"): marks.new("owner")}],
        "uid": marks.new("metadata.uid"),
        "resourceVersion": marks.new("metadata.resourceVersion"),
        "selfLink": marks.new("metadata.selfLink"),
        "creationTimestamp": marks.new("metadata.creationTimestamp"),
        "finalizers": [marks.new("metadata.finalizers")],
        "managedFields": [{"manager": marks.new("metadata.managedFields")}],
        marks.new("metadata unknown key"): marks.new("metadata unknown"),
    }


def is_kept(place: str) -> bool:
    """Whether the page says that what stands here is kept; names in the domains of Kubernetes are."""
    *_, parent, field = ("", *place.removesuffix(" key").split("."))
    if place.endswith(" key"):
        return field in ("methods", "routes", "headers", "addRequestHeaders")
    return field in KEPT or f"{parent}.{field}" in KEPT_BELOW or place == "k8s label"


def kinds() -> Iterator[Kind]:
    for kind in all_kinds():
        if kind.kind not in ("PolicyTest", "CustomResourceDefinition"):
            yield kind


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: f"{kind.api_version}-{kind.kind}")
def test_no_text_of_a_kind_is_left(kind: Kind) -> None:
    marks = Marks()
    value = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": marked_metadata(marks, "shop" if kind.scope == "Namespaced" else ""),
        **filled(kind.schema, marks, ()),
    }
    result = redact(snapshot_of([value]))
    assert [place for place in marks.left_in(list(result.values)) if not is_kept(place)] == []


# Objects in which `@` stands for a mark. What is kept has none.
FILES = sorted((ROOT / "tests" / "redact" / "marked").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_text_of_an_object_is_left(file: Path) -> None:
    marks = Marks()
    written = file.read_text().partition("\n")[2].replace("@@example", "@%example")
    text = re.sub("@", lambda _: marks.new(file.stem), written).replace("%", "@")
    values = [value for value in yaml.safe_load_all(text) if value]
    result = redact(snapshot_of(values))
    dumped = yaml.safe_dump(list(result.values))
    left = sorted({match.lower() for match in MARK.findall(dumped)})
    lines = [line for line in text.splitlines() for mark in left if mark in line]
    assert (lines, marks.left_in(list(result.values))) == ([], [])
    for other in ("123456789012", "10-0-"):
        assert other not in dumped
    assert len(result.values) == len(values)
