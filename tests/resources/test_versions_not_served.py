"""Objects in versions that no API server serves (docs/reference/sources.md#versions-that-are-not-served)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tierwall
from tests.worlds.network_objects import pod
from tierwall.resources.crd import crd_documents
from tierwall.resources.kinds.registry import all_kinds
from tierwall.resources.kinds.served import scope_of
from tierwall.resources.load import read_objects
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

Object = dict[str, Any]
TEMPLATE = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": []}}
PODS = (pod("shop", "web"), pod("shop", "db"))
CLOSED = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def named(api_version: str, kind: str, name: str, namespace: str = "", **more: Any) -> Object:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


def verdict(*objects: Object) -> str:
    world = tierwall.load(objects=(*PODS, *objects))
    return str(world.ask(tierwall.NetworkQuestion(source="shop/web", to="shop/db", port=80)).verdict)


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        ("extensions/v1beta1", "Deployment"),
        ("extensions/v1beta1", "DaemonSet"),
        ("extensions/v1beta1", "ReplicaSet"),
        ("apps/v1beta1", "StatefulSet"),
        ("apps/v1beta2", "Deployment"),
        ("v1", "ReplicationController"),
    ],
)
def test_workloads_of_any_version_make_pods_in_the_default_namespace(api_version: str, kind: str) -> None:
    world = tierwall.load(objects=[named(api_version, kind, "old", spec={"replicas": 1, "template": TEMPLATE})])
    question = tierwall.NetworkQuestion(source="default/old-0", to="default/old-0", port=80)
    assert str(world.ask(question).verdict) == "Allow"
    assert [finding.code for finding in world.check()] == ([] if api_version == "v1" else ["TW116"])
    assert world.not_considered == ()


@pytest.mark.parametrize("api_version", ["batch/v1beta1", "batch/v2alpha1"])
def test_cron_jobs_of_any_version_make_pods(api_version: str) -> None:
    spec = {"jobTemplate": {"spec": {"template": TEMPLATE}}}
    world = tierwall.load(objects=[named(api_version, "CronJob", "old", spec=spec)])
    answer = world.ask(tierwall.NetworkQuestion(source="default/old-0", to="default/old-0", port=80))
    assert str(answer.verdict) == "Allow"
    assert [finding.code for finding in world.check()] == ["TW116"]


def test_a_workload_is_the_same_object_in_every_group_that_served_it() -> None:
    old = named("extensions/v1beta1", "Deployment", "web", "shop", spec={"replicas": 2, "template": TEMPLATE})
    new = named("apps/v1", "Deployment", "web", "shop", spec={"replicas": 1, "template": TEMPLATE})
    assert len(list(tierwall.load(objects=[old, new]).objects("Deployment"))) == 1


@pytest.mark.parametrize("api_version", ["extensions/v1beta1", "networking.k8s.io/v1beta1", "networking.k8s.io/v2"])
def test_a_policy_takes_no_part(api_version: str) -> None:
    served = named("networking.k8s.io/v1", "NetworkPolicy", "closed", "shop", spec=CLOSED)
    unserved = {**served, "apiVersion": api_version}
    assert verdict(served) == "Deny"
    assert verdict(unserved) == "Allow"
    # It does not replace the same policy in a version that is served, either.
    assert verdict(served, unserved) == verdict(unserved, served) == "Deny"
    world = tierwall.load(objects=[*PODS, unserved])
    assert [finding.code for finding in world.check()] == ["TW115"]
    assert world.find("NetworkPolicy/shop/closed").version == unserved["apiVersion"].partition("/")[2]
    assert world.without("NetworkPolicy/shop/closed").check() == []


def test_an_api_server_refuses_every_version_that_is_not_served() -> None:
    for api_version, kind in (("extensions/v1beta1", "NetworkPolicy"), ("apps/v1beta2", "Deployment")):
        question = tierwall.AdmitQuestion(object=named(api_version, kind, "x", spec={"podSelector": {}}))
        answer = tierwall.load().ask(question)
        assert str(answer.verdict) == "Deny"
        assert "no matches for kind" in answer.sentence


def grant(version: str, **binding: Any) -> list[Object]:
    api_version = f"rbac.authorization.k8s.io/{version}"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]
    return [
        named(api_version, "ClusterRole", "reader", rules=rules),
        named(api_version, "ClusterRoleBinding", "reader", roleRef=role, subjects=subjects),
    ]


def test_rbac_in_a_removed_version_grants_nothing() -> None:
    question = tierwall.ApiQuestion(user="alice", verb="get", resource="pods", namespace="shop")
    assert str(tierwall.load(objects=grant("v1")).ask(question).verdict) == "Allow"
    assert str(tierwall.load(objects=grant("v1beta1")).ask(question).verdict) == "NoOpinion"


def admin(version: str) -> Object:
    rule = {"name": "no", "action": "Deny", "from": [{"namespaces": {}}]}
    spec = {"priority": 1, "subject": {"namespaces": {}}, "ingress": [rule]}
    return named(f"policy.networking.k8s.io/{version}", "AdminNetworkPolicy", "guard", spec=spec)


def serving(version: str) -> Object:
    kinds = [kind for kind in all_kinds() if kind.kind == "AdminNetworkPolicy"]
    (definition,) = crd_documents(kinds)
    entries = [{**entry, "name": version} for entry in definition["spec"]["versions"]]
    return {**definition, "spec": {**definition["spec"], "versions": entries}}


def test_a_definition_among_the_objects_may_serve_another_version() -> None:
    assert verdict(admin("v1alpha1")) == "Deny"
    assert verdict(admin("v1beta1")) == "Allow"
    assert verdict(admin("v1beta1"), serving("v1beta1")) == "Deny"
    world = tierwall.load(objects=[*PODS, admin("v1beta1")])
    assert list(world.snapshot.set_aside)
    assert not list(world.overlay(objects=[serving("v1beta1")]).snapshot.set_aside)
    name = "CustomResourceDefinition/adminnetworkpolicies.policy.networking.k8s.io"
    assert list(world.overlay(objects=[serving("v1beta1")]).without(name).snapshot.set_aside)


def resources(*objects: Object) -> tuple[Resource, ...]:
    return tuple(item for value in objects for item in read_objects(value) if isinstance(item, Resource))


def test_a_cluster_serves_what_it_has() -> None:
    """Its policies count, in whatever version, although definitions are not read for every question."""
    (listed,) = resources(admin("v9"))
    assert list(Snapshot.of([listed]).set_aside) == [listed]
    live = msgspec.structs.replace(listed, is_live=True)
    assert list(Snapshot.of([live]).of_kind("policy.networking.k8s.io", "AdminNetworkPolicy")) == [live]
    assert list(Snapshot.of([]).with_changes([live]).set_aside) == []


def test_a_snapshot_that_is_updated_is_that_of_the_new_objects() -> None:
    served = named("networking.k8s.io/v1", "NetworkPolicy", "closed", "shop", spec=CLOSED)
    before, after = resources(served), resources({**served, "apiVersion": "networking.k8s.io/v1beta1"})
    updated = Snapshot.of(before).updated_to(before, after)
    assert list(updated.of_kind("networking.k8s.io", "NetworkPolicy")) == []
    assert list(updated.set_aside) == list(after)
    assert list(updated.changes(Snapshot.of(before))) == [(before[0], None)]


@pytest.mark.parametrize(
    ("api_version", "kind", "scope"),
    [
        ("v1", "ConfigMap", "Namespaced"),
        ("extensions/v1beta1", "Ingress", "Namespaced"),
        ("networking.k8s.io/v1beta1", "IngressClass", "Cluster"),
        ("cilium.io/v2", "CiliumNetworkPolicy", "Namespaced"),
        ("cilium.io/v2", "CiliumClusterwideNetworkPolicy", None),
        ("route.openshift.io/v1", "Route", "Namespaced"),
        ("gateway.networking.k8s.io/v1alpha2", "TCPRoute", "Namespaced"),
        ("example.com/v1", "Widget", None),
    ],
)
def test_kinds_that_no_plane_reads_have_a_scope(api_version: str, kind: str, scope: str | None) -> None:
    assert scope_of(api_version, kind) == scope
