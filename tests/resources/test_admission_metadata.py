"""Object metadata as the API server checks it: generateName, the size of annotations, owners and finalizers."""

from __future__ import annotations

from typing import Any

import pytest

from tierwall.resources.admission import admit

LIMIT = 256 * 1024
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "NetworkPolicy": ("networking.k8s.io/v1", {"spec": {"podSelector": {}}}),
    "Namespace": ("v1", {}),
    "Service": ("v1", {"spec": {"ports": [{"port": 80}]}}),
    "Role": ("rbac.authorization.k8s.io/v1", {}),
    "AuthorizationPolicy": ("tierwall.io/v1alpha1", {"spec": {"effect": "Allow", "expression": "true"}}),
}
SUBDOMAIN = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "


def refusals(kind: str, **metadata: Any) -> list[str]:
    api_version, rest = KINDS[kind]
    problems = admit({"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest})
    return [problem.message for problem in problems if problem.refuses]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", ["a-", "a", "web-1-", "x" * 61 + "-"])
def test_a_prefix_of_valid_names_is_accepted(kind: str, prefix: str) -> None:
    assert refusals(kind, generateName=prefix) == []


@pytest.mark.parametrize("prefix", ["-", "-a", "a.", "A", "a_b", "é", "a" * 254])
@pytest.mark.parametrize("name", ["", "ok"])
def test_a_prefix_of_invalid_names_is_refused_also_beside_a_name(prefix: str, name: str) -> None:
    (message,) = refusals("NetworkPolicy", generateName=prefix, name=name)
    assert message.startswith(f'metadata.generateName: Invalid value: "{prefix}": ')


def test_the_message_is_that_for_the_name() -> None:
    (message,) = refusals("NetworkPolicy", generateName="A")
    assert message.startswith(f'metadata.generateName: Invalid value: "A": {SUBDOMAIN}')
    (message,) = refusals("Namespace", generateName="a.b")
    assert message == 'metadata.generateName: Invalid value: "a.b": must not contain dots'
    (message,) = refusals("Role", generateName="a/b")
    assert message == "metadata.generateName: Invalid value: \"a/b\": may not contain '/'"


@pytest.mark.parametrize("prefix", [".", "..", "A_é-"])
def test_a_prefix_of_a_path_segment_may_begin_with_almost_anything(prefix: str) -> None:
    assert refusals("Role", generateName=prefix) == []


@pytest.mark.parametrize("prefix", ["A-", "a_-", "a.-"])
def test_a_bad_character_before_a_last_dash_is_allowed_only_beside_a_name(prefix: str) -> None:
    assert refusals("NetworkPolicy", generateName=prefix, name="ok") == []
    (message,) = refusals("NetworkPolicy", generateName=prefix)
    assert message.startswith("metadata.generateName: Invalid value: ")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("letter", "width"), [("x", 1), ("é", 2)])
def test_annotations_have_at_most_256_kib_of_keys_and_values(kind: str, letter: str, width: int) -> None:
    fitting = {"a": letter * ((LIMIT - 2) // width), "b": ""}
    assert refusals(kind, name="ok", annotations=fitting) == []
    message = f"metadata.annotations: Too long: may not be more than {LIMIT} bytes"
    assert refusals(kind, name="ok", annotations={**fitting, "c": ""}) == [message]


def test_only_one_owner_is_a_controller_and_events_own_nothing() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
    assert refusals("Role", name="ok", ownerReferences=[owner, {**owner, "controller": False}]) == []
    (message,) = refusals("Role", name="ok", ownerReferences=[owner, owner])
    assert "Only one reference can have Controller set to true" in message
    (message,) = refusals("Role", name="ok", ownerReferences=[{**owner, "apiVersion": "v1", "kind": "Event"}])
    assert "/v1, Kind=Event is disallowed from being an owner" in message
    (message,) = refusals("Role", name="ok", ownerReferences=[{**owner, "apiVersion": "apps/"}])
    assert "version must not be empty" in message


def test_an_object_is_orphaned_or_deleted_in_the_foreground_not_both() -> None:
    assert refusals("Role", name="ok", finalizers=["orphan", "a.b/c"]) == []
    (message,) = refusals("Role", name="ok", finalizers=["orphan", "foregroundDeletion"])
    assert "finalizer orphan and foregroundDeletion cannot be both set" in message
