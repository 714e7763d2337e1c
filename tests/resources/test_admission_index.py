"""Problems of one snapshot after the other: the same as if each were looked at for the first time."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tierwall.analyze.admission import AdmissionIndex, admission_findings
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# A kind that a definition may describe, one that is built in, and a policy in a version that is set aside.
_DEFINITION = "apiextensions.k8s.io", "v1", "CustomResourceDefinition"
_KINDS = (
    ("example.com", "v1", "Thing"),
    ("networking.k8s.io", "v1", "NetworkPolicy"),
    ("networking.k8s.io", "v1beta1", "NetworkPolicy"),
    _DEFINITION,
)


def _spec(kind: str, serial: int) -> Any:
    if kind == "CustomResourceDefinition":
        size = {"type": ("integer", "string", "boolean")[serial % 3]}
        schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": size}}}}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"kind": "Thing", "plural": "things", "singular": "thing", "listKind": "ThingList"}
        return {"group": "example.com", "names": names, "scope": "Namespaced", "versions": [version]}
    return {"podSelector": {}, "size": serial} if serial % 2 else {"podSelector": serial}


def _resource(place: tuple[int, int, int]) -> Resource:
    number, name, serial = place
    group, version, kind = _KINDS[number]
    is_definition = kind == "CustomResourceDefinition"
    metadata = {"name": "things.example.com"} if is_definition else {"name": f"o{name}", "namespace": "n"}
    value = {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": metadata, "spec": _spec(kind, serial)}
    return Resource(group, version, kind, str(metadata.get("namespace", "")), str(metadata["name"]), value)


_PLACES = st.tuples(st.integers(0, len(_KINDS) - 1), st.integers(0, 2), st.integers(0, 5))
_STEPS = st.lists(st.tuples(st.booleans(), st.lists(_PLACES, max_size=4)), min_size=1, max_size=6)


@settings(max_examples=examples(60))
@given(_STEPS)
def test_problems_are_those_of_a_first_look(steps: list[tuple[bool, list[tuple[int, int, int]]]]) -> None:
    index, snapshot = AdmissionIndex(), Snapshot({})
    for drops, places in steps:
        resources = [_resource(place) for place in places]
        snapshot = snapshot.with_changes(drop=resources) if drops else snapshot.with_changes(put=resources)
        findings = sorted(map(repr, index.findings(snapshot)))
        assert findings == sorted(map(repr, admission_findings(snapshot)))


def test_the_definition_of_a_kind_changes_what_is_found() -> None:
    """Otherwise the random test would not show that definitions count."""
    thing = _resource((0, 0, 1))
    index = AdmissionIndex()
    as_number = list(index.findings(Snapshot.of([thing, _resource((3, 0, 0))])))
    as_string = list(index.findings(Snapshot.of([thing, _resource((3, 0, 1))])))
    assert len(as_string) == len(as_number) + 1
