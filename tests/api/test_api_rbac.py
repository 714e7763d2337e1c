"""RBAC as Kubernetes' own authorizer does it (docs/semantics.md#rbac-only-ever-allows)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.api_fakes import objects
from tierwall.api.algebra.request import Attributes
from tierwall.api.authorizers.rbac import RbacAuthorizer
from tierwall.resources.snapshot import Snapshot

API = "rbac.authorization.k8s.io/v1"


def role(name: str, *rules: dict[str, Any], namespace: str = "", **more: Any) -> dict[str, Any]:
    kind = "Role" if namespace else "ClusterRole"
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **more.pop("metadata", {})}
    return {"apiVersion": API, "kind": kind, "metadata": metadata, "rules": list(rules), **more}


def binding(role: str, *subjects: dict[str, Any], namespace: str = "", kind: str = "ClusterRole") -> dict[str, Any]:
    metadata = {"name": f"{role}-binding", **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": API,
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"kind": kind, "name": role},
        "subjects": list(subjects),
    }


ALICE = {"kind": "User", "name": "alice"}


def rule(resources: str, verbs: str = "get", groups: str = "", **more: Any) -> dict[str, Any]:
    return {"apiGroups": groups.split(","), "resources": resources.split(","), "verbs": verbs.split(","), **more}


def allows(snapshot: Snapshot, **attributes: Any) -> bool:
    given = {"user": "alice", "verb": "get", **attributes}
    return (
        RbacAuthorizer(snapshot).authorize(Attributes(is_resource_request="path" not in given, **given)).verdict
        == "Allow"
    )


def granted(*rules: dict[str, Any]) -> Snapshot:
    return objects(role("r", *rules), binding("r", ALICE))


@pytest.mark.parametrize(
    ("resources", "resource", "subresource", "good"),
    [
        ("pods", "pods", "", True),
        ("pods", "pods", "log", False),
        ("pods/log", "pods", "log", True),
        ("pods/log", "pods", "", False),
        ("*", "pods", "log", True),
        ("*", "*", "", True),
        ("pods", "*", "", False),
        ("*/log", "pods", "log", True),
        ("*/log", "pods", "", False),
        ("*/log", "pods", "exec", False),
        ("pods/*", "pods", "log", False),
    ],
)
def test_resources_and_subresources(resources: str, resource: str, subresource: str, good: bool) -> None:
    assert allows(granted(rule(resources)), resource=resource, subresource=subresource) is good


def test_groups_and_verbs() -> None:
    assert allows(granted(rule("deployments", "get,list", "apps")), resource="deployments", group="apps", verb="list")
    assert not allows(granted(rule("deployments", "get", "apps")), resource="deployments")
    assert allows(granted(rule("pods", "*", "*")), resource="pods", group="x", verb="anything")
    assert not allows(granted(rule("pods", "get")), resource="pods", verb="*")
    assert allows(granted(rule("pods", "*")), resource="pods", verb="*")
    assert not allows(granted(rule("pods")), resource="pods", group="*")


def test_resource_names_never_match_an_empty_name() -> None:
    named = granted(rule("pods", resourceNames=["a", ""]))
    assert allows(named, resource="pods", name="a")
    assert not allows(named, resource="pods", name="b")
    assert not allows(named, resource="pods", name="")
    assert allows(granted(rule("pods", resourceNames=[])), resource="pods", name="b")
    assert not allows(granted(rule("pods", resourceNames=[7])), resource="pods", name="b")


@pytest.mark.parametrize(
    ("url", "path", "good"),
    [
        ("/a/*", "/a/b/c", True),
        ("/a/*", "/a/", True),
        ("/a/*", "/a", False),
        ("/a", "/a", True),
        ("/a", "/a/b", False),
        ("*", "/x", True),
        ("/heal*", "/healthz", True),
    ],
)
def test_urls(url: str, path: str, good: bool) -> None:
    snapshot = objects(role("r", {"nonResourceURLs": [url], "verbs": ["get"]}), binding("r", ALICE))
    assert allows(snapshot, path=path) is good
    assert not allows(snapshot, path=path, verb="post")
    assert not allows(
        objects(role("r", {"nonResourceURLs": [url], "verbs": ["get"]}), binding("r", ALICE, namespace="n")), path=path
    )


def test_a_role_binding_reaches_its_namespace_only() -> None:
    snapshot = objects(role("r", rule("pods")), binding("r", ALICE, namespace="dev"))
    assert allows(snapshot, resource="pods", namespace="dev")
    assert not allows(snapshot, resource="pods", namespace="prod")
    assert not allows(snapshot, resource="pods")


def test_a_role_is_found_only_in_the_namespace_of_its_binding() -> None:
    mine = role("r", rule("pods"), namespace="dev")
    assert allows(objects(mine, binding("r", ALICE, namespace="dev", kind="Role")), resource="pods", namespace="dev")
    elsewhere = objects(mine, binding("r", ALICE, namespace="prod", kind="Role"))
    assert not allows(elsewhere, resource="pods", namespace="prod")
    assert not allows(objects(mine, binding("r", ALICE, kind="Role")), resource="pods", namespace="dev")


def test_a_missing_role_grants_nothing() -> None:
    assert not allows(objects(binding("r", ALICE)), resource="pods")


def test_subjects() -> None:
    account = {"kind": "ServiceAccount", "name": "bot"}
    snapshot = objects(role("r", rule("pods")), binding("r", account, namespace="dev"))
    assert allows(snapshot, user="system:serviceaccount:dev:bot", resource="pods", namespace="dev")
    assert not allows(snapshot, user="system:serviceaccount:prod:bot", resource="pods", namespace="dev")
    everywhere = objects(role("r", rule("pods")), binding("r", account))
    assert not allows(everywhere, user="system:serviceaccount::bot", resource="pods")
    other = objects(role("r", rule("pods")), binding("r", {**account, "namespace": "ci"}, namespace="dev"))
    assert allows(other, user="system:serviceaccount:ci:bot", resource="pods", namespace="dev")
    group = objects(role("r", rule("pods")), binding("r", {"kind": "Group", "name": "ops"}))
    assert allows(group, groups=("ops",), resource="pods")
    assert not allows(group, user="ops", resource="pods")
    assert not allows(group, user="alice", resource="pods")  # no group is added implicitly


def test_aggregation_follows_labels_through_other_aggregated_roles_and_ends() -> None:
    def aggregated(name: str, label: str, **labels: str) -> dict[str, Any]:
        selector = {"clusterRoleSelectors": [{"matchLabels": {label: "yes"}}]}
        return role(name, rule("secrets"), aggregationRule=selector, metadata={"labels": labels})

    snapshot = objects(
        aggregated("top", "to-top"),
        aggregated("middle", "to-middle", **{"to-top": "yes", "to-middle": "yes"}),
        role("leaf", rule("pods"), metadata={"labels": {"to-middle": "yes"}}),
        role("other", rule("nodes"), metadata={"labels": {"to-other": "yes"}}),
        binding("top", ALICE),
    )
    assert allows(snapshot, resource="pods")
    assert not allows(snapshot, resource="nodes")
    assert not allows(snapshot, resource="secrets")  # the controller overwrites what was written into the role


@pytest.mark.parametrize("broken", [None, 7, "x", [7], {"a": 1}, [None], [{"verbs": "get"}], [{"verbs": [["x"]]}]])
def test_malformed_parts_grant_nothing(broken: Any) -> None:
    bad_rules = {**role("r"), "rules": broken}
    assert not allows(objects(bad_rules, binding("r", ALICE)), resource="pods")
    bad_subjects = {**binding("r"), "subjects": broken}
    assert not allows(objects(role("r", rule("pods")), bad_subjects), resource="pods")
    bad_reference = {**binding("r", ALICE), "roleRef": broken}
    assert not allows(objects(role("r", rule("pods")), bad_reference), resource="pods")


def test_the_reason_names_binding_and_role_and_the_step_the_rule() -> None:
    decision = RbacAuthorizer(granted(rule("nodes"), rule("pods"))).authorize(
        Attributes(user="alice", verb="get", resource="pods")
    )
    assert decision.reason == "RBAC: allowed by ClusterRoleBinding/r-binding of ClusterRole/r"
    assert decision.steps[0].rule == "rules[1]"


def test_rbac_does_not_evaluate_conditions() -> None:
    from tierwall.api.algebra.condition import ConditionSet
    from tierwall.api.algebra.request import ConditionData

    assert RbacAuthorizer(objects()).evaluate(ConditionSet("rbac", ()), ConditionData()).verdict == "Deny"
