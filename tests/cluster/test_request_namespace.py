"""Requests to the API server are in the namespace of the context, as with kubectl (docs/clusters.md)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from tests.labs.served_cluster import serving
from tierwall.cli.main import root

RBAC = "rbac.authorization.k8s.io"


def granted(kind: str, namespace: str, name: str, rule: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a role with a rule, bound to bob."""
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return [
        {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
            "subjects": [{"kind": "User", "apiGroup": RBAC, "name": "bob"}],
        },
    ]


# bob reads pods in shop, nodes, which are in no namespace, and the path /metrics.
OBJECTS = [
    *granted("Role", "shop", "pods", {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}),
    *granted("ClusterRole", "", "nodes", {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}),
    *granted("ClusterRole", "", "metrics", {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}),
    {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "AuthorizationPolicy",
        "metadata": {"name": "guard", "namespace": "shop"},
        "spec": {"effect": "Deny", "expression": "request.resource == 'nodes'"},
    },
]


@pytest.mark.parametrize(
    ("question", "namespace", "allowed"),
    [
        (("get", "pods"), "shop", True),
        (("get", "pods"), "prod", False),
        (("get", "pods", "-n", "prod"), "shop", False),
        (("get", "pods", "-n", "shop"), "prod", True),
        (("get", "nodes"), "shop", True),
        (("get", "no"), "shop", True),
        (("get", "/metrics"), "shop", True),
    ],
)
def test_can_i_asks_in_the_namespace_of_the_context(question: tuple[str, ...], namespace: str, allowed: bool) -> None:
    with serving(OBJECTS, namespace=namespace) as cluster:
        source = ("--cluster", "--kubeconfig", cluster.kubeconfig)
        result = CliRunner().invoke(root, ["can-i", *question, "--as", "bob", *source])
    assert result.exit_code == (0 if allowed else 3), result.output


@pytest.mark.parametrize(
    ("request_of", "asked_in"),
    [(("--resource", "pods"), "shop"), (("--resource", "nodes"), ""), (("--path", "/metrics"), "")],
)
def test_explain_api_does_too(request_of: tuple[str, str], asked_in: str) -> None:
    with serving(OBJECTS, namespace="shop") as cluster:
        source = ("--cluster", "--kubeconfig", cluster.kubeconfig)
        result = CliRunner().invoke(root, ["explain", "api", "--user", "bob", "--verb", "get", *request_of, *source])
    assert result.exit_code == 0, result.output
    assert ("in namespace `shop`" in result.stdout or " shop" in result.stdout.splitlines()[0]) == bool(asked_in)


def test_without_a_cluster_a_request_is_in_no_namespace(tmp_path: Any) -> None:
    (tmp_path / "roles.json").write_text("\n---\n".join(map(json.dumps, OBJECTS)))
    result = CliRunner().invoke(root, ["can-i", "get", "pods", "--as", "bob", "-f", str(tmp_path)])
    assert result.exit_code == 3


def test_the_permissions_are_those_in_the_namespace_of_the_context() -> None:
    with serving(OBJECTS, namespace="shop") as cluster:
        source = ("--cluster", "--kubeconfig", cluster.kubeconfig)
        result = CliRunner().invoke(root, ["can-i", "--list", "--as", "bob", *source])
    assert "pods" in result.stdout
