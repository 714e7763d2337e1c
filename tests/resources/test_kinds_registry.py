"""Kinds are found by apiVersion and kind. Unknown kinds are ignored; near misses of known ones are not."""

from pathlib import Path

import pytest

from tierwall.resources.admission import admit
from tierwall.resources.kinds import registry
from tierwall.resources.kinds.registry import all_kinds, find_kind, misspelled_kind_hint


def test_every_kind_is_found_by_its_own_name() -> None:
    for kind in all_kinds():
        assert find_kind(kind.api_version, kind.kind) is kind


def test_one_version_of_each_custom_resource_is_stored() -> None:
    stored: dict[tuple[str, str], int] = {}
    for kind in all_kinds():
        if kind.is_crd:
            stored[kind.group, kind.kind] = stored.get((kind.group, kind.kind), 0) + kind.storage
    assert set(stored.values()) == {1}


def test_policy_kinds_are_strict_and_read_kinds_are_not() -> None:
    lenient = {kind.kind for kind in all_kinds() if not kind.strict}
    workloads = {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"}
    assert {"Namespace", "Node", "Pod", "Service"} | workloads <= lenient
    for name in ("NetworkPolicy", "AdminNetworkPolicy", "AgentgatewayPolicy", "Role", "PolicyTest"):
        assert name not in lenient


@pytest.mark.parametrize("kind", ["ConfigMap", "Secret", "Ingress", "Widget"])
def test_an_unknown_kind_is_ignored(kind: str) -> None:
    assert admit({"apiVersion": "v1", "kind": kind, "whatever": 1}) == []


@pytest.mark.parametrize(
    ("api_version", "kind", "hint"),
    [
        ("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolcy", "did you mean `AdminNetworkPolicy`?"),
        ("networking.k8s.io/v1", "networkPolicy", "did you mean `NetworkPolicy`?"),
        ("networking.k8s.io/v2", "NetworkPolicy", "use apiVersion `networking.k8s.io/v1`"),
        ("v2", "Pod", "use apiVersion `v1`"),
    ],
)
def test_a_near_miss_of_a_known_kind_is_an_error_with_a_hint(api_version: str, kind: str, hint: str) -> None:
    (problem,) = admit({"apiVersion": api_version, "kind": kind})
    assert problem.message == f'no matches for kind "{kind}" in version "{api_version}"'
    assert problem.hint == hint


def test_other_kinds_of_a_shared_group_are_not_misnamed() -> None:
    assert misspelled_kind_hint("networking.k8s.io/v1", "Ingress") is None
    assert misspelled_kind_hint("example.com/v1", "NetworkPolicy") is None


def test_the_problem_of_a_document_without_a_type_says_what_is_missing() -> None:
    assert [problem.message for problem in admit({})] == ["apiVersion: Required value", "kind: Required value"]
    assert admit([])[0].expected == "object"
    assert admit({"apiVersion": 1, "kind": "Pod"})[0].path == ("apiVersion",)


def test_every_file_is_the_definition_of_the_kind_that_it_is_named_after() -> None:
    data = Path(registry.__file__).parent / "data"
    listed = {f"{kind.group or 'core'}/{kind.kind}.json" for kind in all_kinds()}
    assert {str(file.relative_to(data)) for file in data.glob("*/*")} == listed
    for kind in all_kinds():
        names = registry.built_in_definition(kind.group, kind.kind)["metadata"]["name"], f"{kind.plural}.{kind.group}"
        assert names[0] == names[1].rstrip(".")
