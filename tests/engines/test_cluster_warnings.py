"""A real kube-apiserver asks `tierwall controller --webhook` about changes, and a real kubectl shows what it says."""

from __future__ import annotations

import base64
import json
import socket
import ssl
from collections.abc import Iterator
from http.client import HTTPSConnection
from typing import Any

import pytest

from tests.labs.chart import NAMESPACE
from tests.labs.live_client import pod
from tests.labs.waiting import PATIENCE_S, eventually
from tests.labs.warned_cluster import CONFIGURATION, WarnedCluster, encoded

pytestmark = [pytest.mark.engine, pytest.mark.slow]

Object = dict[str, Any]


def network_policy(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], **spec},
    }


def admin_policy(name: str, action: str, priority: int = 5) -> Object:
    rule = {"name": "r", "action": action, "from": [{"namespaces": {}}]}
    return {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": name},
        "spec": {
            "priority": priority,
            "subject": {"namespaces": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}},
            "ingress": [rule],
        },
    }


FROM_DB: Object = {"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "db"}}}], "ports": [{"port": 8080}]}]}
GUARD = admin_policy("guard", "Deny")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarnedCluster]:
    cluster = WarnedCluster(tmp_path_factory.mktemp("warned"))
    try:
        cluster.start()
        cluster.client.namespace("shop", team="shop")
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "shop"}}
        cluster.client.create(account, *(pod("shop", name, {"app": name}) for name in ("web", "db")))
        rules = [{"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["*"]}]
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "editor"}}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "editors", "namespace": "shop"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "editor"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "developers"}],
        }
        cluster.client.create({**role, "rules": rules}, binding)
        cluster.client.create(network_policy("web", **FROM_DB))
        cluster.start_controller("--refuse", "TW201")
        # An API server asks a new webhook within a second or so.
        eventually(lambda: said(cluster, GUARD, "--dry-run=server"), "the webhook")
        assert said(cluster, GUARD) == [
            "TW202: AdminNetworkPolicy/guard overrides NetworkPolicy/shop/web, "
            "for example on shop/db to any pod with app=web in shop on TCP 8080"
        ]
        # The controller learns of it by its watch.
        eventually(lambda: said(cluster, network_policy("probe", **FROM_DB), "--dry-run=server"), "the admin policy")
        yield cluster
    finally:
        cluster.stop()


def said(cluster: WarnedCluster, value: Object, *options: str, context: str = "admin") -> list[str]:
    """Apply an object, which must succeed, and return the warnings."""
    is_done, lines = cluster.warned_apply(value, *options, context=context)
    assert is_done, lines
    assert all(line.startswith("Warning: ") for line in lines), lines
    return [line.removeprefix("Warning: ") for line in lines]


def test_the_author_of_a_policy_is_told_what_it_brings_also_by_a_dry_run(cluster: WarnedCluster) -> None:
    denied = (
        "TW202: AdminNetworkPolicy/guard denies everything that ingress[0] of NetworkPolicy/shop/more allows, "
        "for example shop/db to any pod with app=web in shop on TCP 8080"
    )
    policy = network_policy("more", **FROM_DB)
    assert said(cluster, policy, "--dry-run=server") == [denied]
    assert cluster.client.request("GET", "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/more")[0] == 404
    assert said(cluster, policy) == [denied]
    # Nothing that was there before is said again.
    labelled = {**policy, "metadata": {**policy["metadata"], "labels": {"a": "b"}}}
    assert said(cluster, labelled) == []


def test_a_developer_learns_that_there_is_an_admin_policy_and_nothing_else(cluster: WarnedCluster) -> None:
    elsewhere = {"from": [{"namespaceSelector": {"matchLabels": {"team": "secret"}}}]}
    policy = network_policy("theirs", ingress=[*FROM_DB["ingress"], elsewhere])
    hidden = "TW203: an admin policy that you may not read overrides NetworkPolicy/shop/theirs"
    assert said(cluster, policy, "--dry-run=server", context="developer") == [hidden]
    known = said(cluster, policy, "--dry-run=server")
    assert [line.split(":")[0] for line in known] == ["TW202", "TW205"]
    # Once they may list pods and read that policy, they are told more.
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    admin = {"apiGroups": ["policy.networking.k8s.io"], "resources": ["adminnetworkpolicies"], "verbs": ["get"]}
    group = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "r"}, "rules": [pods, admin]}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "r"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "r"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "dora"}],
    }
    cluster.client.create(role, binding)
    try:
        eventually(lambda: said(cluster, policy, "--dry-run=server", context="developer") == known, "more rights")
    finally:
        cluster.client.delete(binding, role)
    eventually(lambda: said(cluster, policy, "--dry-run=server", context="developer") == [hidden], "fewer rights")


def test_policies_of_gateways_and_tools_are_judged(cluster: WarnedCluster) -> None:
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"}
    metadata = {"name": "limits", "namespace": "shop"}
    settings = {"targetRefs": [target], "traffic": {"timeouts": {"request": "1s"}}}
    for version, kind, spec in (
        ("agentgateway.dev/v1alpha1", "AgentgatewayPolicy", settings),
        ("agentic.networking.x-k8s.io/v1alpha1", "XAccessPolicy", {"targetRefs": [target], "action": "Allow"}),
    ):
        policy = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
        assert said(cluster, policy, "--dry-run=server") == [
            f"TW301: {kind}/shop/limits attaches nowhere: Gateway shop/edge not found"
        ]


def test_what_refuse_names_is_refused(cluster: WarnedCluster) -> None:
    is_done, lines = cluster.warned_apply(admin_policy("rival", "Allow"))
    assert not is_done
    text = " ".join(lines)
    assert 'admission webhook "address.tierwall.io" denied the request: TW201: AdminNetworkPolicy/rival has the' in text
    assert "same priority as AdminNetworkPolicy/guard, and they disagree on" in text
    other = admin_policy("rival", "Allow", 6)
    assert [line.split(":")[0] for line in said(cluster, other, "--dry-run=server")] == ["TW207"]


def test_malformed_reviews_are_refused_and_a_long_one_too(cluster: WarnedCluster) -> None:
    context = ssl.create_default_context(cafile=str(cluster.files / "ca.crt"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    for body, status in (
        (b"{}", 400),
        (b"[" * 100_000, 400),
        (json.dumps({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}).encode(), 400),
        (b" " * (7 << 20), 413),
    ):
        connection = HTTPSConnection("127.0.0.1", cluster.webhook_port, timeout=PATIENCE_S, context=context)
        try:
            connection.request("POST", "/warnings", body)
            assert connection.getresponse().status == status
        except (BrokenPipeError, ConnectionResetError):
            # The server need not read to the end what is too long.
            assert status == 413
        finally:
            connection.close()


def test_the_ca_is_published_and_comes_back(cluster: WarnedCluster) -> None:
    """This test and the next restart the controller, so they come last."""
    wanted = encoded((cluster.files / "ca.crt").read_bytes())
    eventually(lambda: cluster.bundle() == wanted, "the CA beside the files")
    patch = '[{"op": "replace", "path": "/webhooks/1/clientConfig/caBundle", "value": ""}]'
    cluster.client.kubectl("patch", CONFIGURATION, "--type=json", "-p", patch)
    eventually(lambda: cluster.bundle() == wanted, "the CA again")


def test_without_files_the_certificates_are_its_own(cluster: WarnedCluster) -> None:
    cluster.stop_controller()
    cluster.start_controller(has_files=False)
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/tierwall-certificates"
    secret = cluster.client.request("GET", path)[1]["data"]
    eventually(lambda: cluster.bundle() == secret["ca.crt"], "the CA of the Secret")
    # An API server that is asked to use the Service checks this name.
    context = ssl.create_default_context(cadata=base64.b64decode(cluster.bundle()).decode())
    name = f"tierwall-controller.{NAMESPACE}.svc"
    with (
        socket.create_connection(("127.0.0.1", cluster.webhook_port), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=name) as connection,
    ):
        assert connection.getpeercert()


def test_nobody_waits_for_a_controller_that_is_down(cluster: WarnedCluster) -> None:
    cluster.stop_controller()
    assert said(cluster, network_policy("unwarned", **FROM_DB)) == []
