"""A cluster has admitted its own objects: nothing there is refused, and what is not known fails closed.

docs/clusters.md#what-is-judged.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tierwall
from tests.labs.served_cluster import ServedCluster, serving
from tierwall.cli.main import root
from tierwall.cluster.cluster import Cluster
from tierwall.cluster.load import load_cluster
from tierwall.cluster.shapes import ApiObject
from tierwall.cluster.wanted import wanted_kinds
from tierwall.resources.validity import TRIMMED, admission_problems, defined_kinds, installed_definitions

RBAC = "rbac.authorization.k8s.io"
EXAMPLES = Path(__file__).parents[2] / "examples"


def run(cluster: ServedCluster, *command: str) -> Result:
    return CliRunner().invoke(root, [*command, "--cluster", "--kubeconfig", cluster.kubeconfig])


def definition(group: str, kind: str, plural: str, short: str) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "required": ["size"]}}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "shortNames": [short]},
            "scope": "Namespaced",
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
            ],
        },
    }


def admin_policy(**rule: Any) -> dict[str, Any]:
    ingress = {"name": "r", "action": "Allow", "from": [{"namespaces": {}}], **rule}
    return {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": "guard"},
        "spec": {"priority": 5, "subject": {"namespaces": {}}, "ingress": [ingress]},
    }


def pod(name: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": "Running", "podIP": f"10.0.0.{len(name)}"},
    }


def test_every_shape_that_drops_fields_is_known_not_to_be_judged() -> None:
    shapes = wanted_kinds(("network", "ways", "tool", "gateway", "api", "aggregation"))
    assert {key for key, shape in shapes.items() if shape is not ApiObject} <= TRIMMED


@pytest.mark.parametrize("folder", ["shop/manifests", "gateway/manifests", "api/policies", "ways-in"])
def test_a_check_of_a_cluster_finds_what_a_check_of_its_files_finds_but_for_refusals(folder: str) -> None:
    """What is read of objects is enough for every check, and no object is refused for what was not read."""
    of_files = {(finding.code, str(finding.reference)) for finding in tierwall.load(EXAMPLES / folder).check()}
    # No server has an AuthorizationConfiguration, which is a file of its own.
    objects = [resource.value for resource in tierwall.load(EXAMPLES / folder).objects() if resource.metadata]
    with serving(objects) as cluster:
        world = tierwall.load(cluster=Cluster(kubeconfig=cluster.kubeconfig))
        of_cluster = {(finding.code, str(finding.reference)) for finding in world.check()}
        checked = run(cluster, "check")
    assert {code for code, _ in of_cluster if code.startswith("TW1")} == set()
    assert not any(omission.reason == "invalid" for omission in world.not_considered)
    assert "not judged" not in checked.stderr
    # The server adds namespaces, and pods of templates are not in it.
    assert {finding for finding in of_files - of_cluster if finding[0].startswith(("TW3", "TW4", "TW5"))} == set()


def test_an_object_of_a_cluster_with_an_unknown_part_fails_closed_and_is_not_refused() -> None:
    objects = [pod("a"), pod("bb"), admin_policy(sometimes=True)]
    with serving(objects) as cluster:
        explained = run(cluster, "explain", "network", "--from", "shop/a", "--to", "shop/bb", "--port", "80")
        checked = run(cluster, "check")
    assert "refused by an API server" not in explained.stdout
    assert "AdminNetworkPolicy/guard" in explained.stdout
    assert "admitted by the cluster, but not known to Tierwall" in checked.stdout
    assert "TW101" not in checked.stdout


def test_definitions_of_a_cluster_tell_names_and_judge_nothing() -> None:
    widget = {
        "apiVersion": "example.k8s.io/v1",
        "kind": "NetworkPolicie",
        "metadata": {"name": "w", "namespace": "shop"},
        "spec": {},
    }
    with serving([definition("example.k8s.io", "NetworkPolicie", "netpolies", "np")]) as cluster:
        settings = Cluster(kubeconfig=cluster.kubeconfig)
        snapshot = load_cluster(settings, ("network", "api"))
        whole = load_cluster(settings, ("admit",))
        world = tierwall.load(cluster=settings, objects=[widget])
        asked = run(cluster, "can-i", "get", "np", "--as", "bob", "-o", "json")
    (trimmed,) = snapshot.of_kind("apiextensions.k8s.io", "CustomResourceDefinition")
    assert trimmed.spec["versions"] == [{"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}]
    assert installed_definitions(snapshot) == {}
    assert ("example.k8s.io", "NetworkPolicie") in defined_kinds(snapshot)
    assert [definition.key for definition in installed_definitions(whole).values()] == [
        ("example.k8s.io", "NetworkPolicie")
    ]
    # It is not a misspelled kind: the cluster has a definition of it.
    assert not any(omission.reason == "invalid" for omission in world.not_considered)
    assert "unknown" not in asked.stderr
    assert json.loads(asked.stdout)["notConsidered"] == []


def test_a_role_of_a_strange_form_grants_nothing() -> None:
    role: dict[str, Any] = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "odd"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "verbes": 1}],
    }
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "odd"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "odd"},
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": "bob"}],
    }
    with serving([role, binding]) as cluster:
        assert run(cluster, "can-i", "get", "pods", "--as", "bob").stdout.startswith("no")
        del role["rules"][0]["verbes"]
        cluster.put(role)
        assert run(cluster, "can-i", "get", "pods", "--as", "bob").stdout.startswith("yes")


def test_pods_of_a_cluster_are_not_judged_by_the_fields_that_are_not_read() -> None:
    with serving([pod("a")]) as cluster:
        snapshot = load_cluster(Cluster(kubeconfig=cluster.kubeconfig), ("network",))
    (read,) = snapshot.of_kind("", "Pod")
    assert "name" not in read.spec["containers"][0]
    assert admission_problems(snapshot, read) == ()
