"""Kinds that could not be read from a cluster are named where they could change the answer, and nowhere else.

docs/reference/sources.md#what-could-not-be-read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.labs.served_cluster import ServedCluster, serving
from tierwall.cli.main import root
from tierwall.cluster.cluster import Cluster
from tierwall.cluster.load import load_cluster
from tierwall.resources.unlisted import UnlistedKind

RBAC = "rbac.authorization.k8s.io"


def pod(namespace: str, name: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    address = f"10.0.{len(namespace)}.{len(name)}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    }


def policy(namespace: str, name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    spec = {"podSelector": {}, "policyTypes": ["Ingress"]}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


OBJECTS = [pod("shop", "web"), pod("shop", "db1"), pod("prod", "api"), policy("shop", "closed"), policy("prod", "p")]
ALICE = "alice"
WEB_TO_DB = ("explain", "network", "--from", "shop/web", "--to", "shop/db1", "--port", "80")
WEB_TO_API = ("explain", "network", "--from", "shop/web", "--to", "prod/api", "--port", "80")


def run(cluster: ServedCluster, *command: str) -> Result:
    return CliRunner().invoke(root, [*command, "--context", ALICE, "--kubeconfig", cluster.kubeconfig])


def entries(cluster: ServedCluster, *command: str) -> list[dict[str, Any]]:
    result = run(cluster, *command, "-o", "json")
    omissions: list[dict[str, Any]] = json.loads(result.stdout)["notConsidered"]
    return omissions


def without(plurals: Mapping[str, Sequence[str]]) -> dict[str, Mapping[str, Sequence[str]]]:
    return {ALICE: plurals}


def test_policies_that_may_not_be_listed_are_named() -> None:
    with serving(OBJECTS, forbidden=without({"networkpolicies": []})) as cluster:
        result = run(cluster, *WEB_TO_DB)
        (entry,) = entries(cluster, *WEB_TO_DB)
        strict = run(cluster, *WEB_TO_DB, "--strict")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "not considered: NetworkPolicies (you may not list them)"
    assert entry == {
        "reason": "forbidden",
        "kind": "NetworkPolicy",
        "group": "networking.k8s.io",
        "count": 1,
        "effect": "policies of this kind may deny what is allowed here, or allow what is denied",
    }
    assert strict.exit_code == 6


def test_a_kind_that_may_be_listed_where_the_question_is_matters_only_elsewhere() -> None:
    with serving(OBJECTS, forbidden=without({"networkpolicies": ["shop"]})) as cluster:
        here, there = run(cluster, *WEB_TO_DB, "--strict"), run(cluster, *WEB_TO_API, "--strict")
        (entry,) = entries(cluster, *WEB_TO_API)
    assert (here.exit_code, there.exit_code) == (3, 6)
    assert "not considered" not in here.stdout
    assert "not considered: NetworkPolicies (you may not list them in prod)" in there.stdout
    assert entry["namespaces"] == ["prod"]


def test_a_list_is_about_all_namespaces() -> None:
    with serving(OBJECTS, forbidden=without({"networkpolicies": ["shop"]})) as cluster:
        listed = run(cluster, "list")
    assert "not considered: NetworkPolicies (you may not list them in prod)" in listed.stdout


def test_pods_that_may_not_be_listed_are_unknown_not_absent() -> None:
    with serving(OBJECTS, forbidden=without({"pods": ["shop"]})) as cluster:
        known, unknown = run(cluster, *WEB_TO_DB), run(cluster, *WEB_TO_API)
        by_address = entries(cluster, "explain", "network", "--from", "shop/web", "--to", "10.9.9.9", "--port", "80")
        listed = run(cluster, "list", "--to", "prod")
    assert known.exit_code == 3
    assert "not considered" not in known.stdout
    assert unknown.exit_code == 1
    expected = "whether there is a pod `api` in namespace `prod` is not known: you may not list Pods in prod"
    assert expected in unknown.stderr
    assert "there is no pod" not in unknown.stderr
    assert [(entry["kind"], entry["namespaces"]) for entry in by_address] == [("Pod", ["prod"])]
    assert "is not known: you may not list Pods in prod" in listed.stderr


@pytest.mark.parametrize(
    ("plural", "end", "expected"),
    [
        ("pods", "Service/shop/web", "the pods behind Service/shop/web are not known: you may not list Pods in shop"),
        ("pods", "Deployment/shop/web", "the pods of Deployment/shop/web are not known: you may not list Pods in shop"),
        ("replicasets", "Deployment/shop/web", "are not known: you may not list ReplicaSets in shop"),
        ("jobs", "Deployment/shop/web", "Deployment/shop/web has no running pod"),
        ("jobs", "Service/shop/web", "Service/shop/web selects no pod"),
    ],
)
def test_pods_of_workloads_and_services_are_unknown_not_absent(plural: str, end: str, expected: str) -> None:
    metadata, selector = {"name": "web", "namespace": "shop"}, {"app": "web"}
    template = {"metadata": {"labels": selector}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": selector}, "template": template}
    objects = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": selector, "ports": [{"port": 80}]},
        },
    ]
    with serving(objects, forbidden=without({plural: []})) as cluster:
        result = run(cluster, "explain", "network", "--from", "10.9.9.9", "--to", end, "--port", "80")
    assert result.exit_code == 1
    assert expected in result.stderr


def test_one_reason_is_enough_why_a_pod_is_not_known() -> None:
    with serving(OBJECTS, forbidden=without({"pods": ["shop"], "cronjobs": ["shop"]})) as cluster:
        unknown = run(cluster, *WEB_TO_API)
    assert "you may not list Pods in prod" in unknown.stderr
    assert "CronJobs" not in unknown.stderr


def test_nodes_matter_only_to_questions_about_addresses_and_nodes() -> None:
    by_address = ("explain", "network", "--from", "10.9.9.9", "--to", "shop/web", "--port", "80")
    by_name = ("explain", "network", "--from", "node:n1", "--to", "shop/web", "--port", "80")
    with serving(OBJECTS, forbidden=without({"nodes": []})) as cluster:
        assert entries(cluster, *WEB_TO_DB) == []
        assert [entry["kind"] for entry in entries(cluster, *by_address)] == ["Node"]
        unknown = run(cluster, *by_name)
    assert "whether there is a node `n1` is not known: you may not list Nodes" in unknown.stderr


def test_labels_of_namespaces_are_known_if_the_namespace_can_be_read_alone() -> None:
    with serving(OBJECTS, forbidden=without({"namespaces": ["shop"]})) as cluster:
        assert entries(cluster, *WEB_TO_DB) == []
        assert [entry["kind"] for entry in entries(cluster, *WEB_TO_API)] == ["Namespace"]


def test_without_the_list_of_namespaces_those_of_the_question_are_read() -> None:
    shop = ["shop"]
    forbidden = without({"namespaces": shop, "pods": shop, "networkpolicies": shop})
    with serving(OBJECTS, forbidden=forbidden) as cluster:
        result = run(cluster, *WEB_TO_DB, "--strict")
        listed = run(cluster, "list", "-n", "shop")
    assert result.exit_code == 3
    assert "shop/* => outside" in listed.stdout
    assert "not considered: NetworkPolicies (you may list them only in shop)" in listed.stdout


def test_workloads_matter_only_if_files_have_some(tmp_path: Any) -> None:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
    metadata = {"name": "web", "namespace": "shop"}
    file = tmp_path / "web.yaml"
    file.write_text(json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}))
    with serving(OBJECTS, forbidden=without({"deployments": []})) as cluster:
        assert entries(cluster, *WEB_TO_DB) == []
        (entry,) = entries(cluster, *WEB_TO_DB, "-f", str(file))
    assert (entry["kind"], entry["group"]) == ("Deployment", "apps")


def test_a_kind_that_does_not_answer_is_named_with_the_reason() -> None:
    with serving(OBJECTS, failing={"networkpolicies": 500}) as cluster:
        result = CliRunner().invoke(root, [*WEB_TO_DB, "--cluster", "--kubeconfig", cluster.kubeconfig, "--strict"])
    expected = "not considered: NetworkPolicies (they could not be read: it does not work today)"
    assert expected in result.stdout
    assert result.exit_code == 6


def test_an_aggregated_api_that_is_down_is_named_if_its_kinds_matter() -> None:
    with serving(OBJECTS, stale=["projectcalico.org"]) as cluster:
        cluster.objects.kinds["projectcalico.org", "v3", "networkpolicies"] = "NetworkPolicy", True
        network, api = run_root(cluster, *WEB_TO_DB), run_root(cluster, "can-i", "get", "pods", "--as", "bob")
    assert (
        "not considered: NetworkPolicies of Calico (they could not be read: their API server does not answer)"
        in network.stdout
    )
    assert "not considered" not in api.stdout + api.stderr


def run_root(cluster: ServedCluster, *command: str) -> Result:
    return CliRunner().invoke(root, [*command, "--cluster", "--kubeconfig", cluster.kubeconfig])


@pytest.mark.parametrize(
    ("verb", "resource", "kinds"),
    [
        ("get", "pods", []),
        ("create", "pods", ["ResourceQuota", "ValidatingWebhookConfiguration"]),
    ],
)
def test_admission_matters_only_to_writes_that_are_allowed(verb: str, resource: str, kinds: list[str]) -> None:
    role = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "all"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    }
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "all"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "all"},
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": "bob"}],
    }
    forbidden = without({"resourcequotas": [], "validatingwebhookconfigurations": []})
    with serving([role, binding], forbidden=forbidden) as cluster:
        command = ("can-i", verb, resource, "--as", "bob", "-n", "shop")
        assert [entry["kind"] for entry in entries(cluster, *command)] == kinds


def test_roles_matter_in_their_namespace_alone() -> None:
    with serving(OBJECTS, forbidden=without({"rolebindings": ["shop"]})) as cluster:
        here = entries(cluster, "can-i", "get", "pods", "--as", "bob", "-n", "shop")
        there = entries(cluster, "can-i", "get", "pods", "--as", "bob", "-n", "prod")
        nowhere = entries(cluster, "can-i", "get", "nodes", "--as", "bob")
    assert (here, nowhere) == ([], [])
    assert [(entry["kind"], entry["namespaces"]) for entry in there] == [("RoleBinding", ["prod"])]


def test_definitions_matter_only_to_names_of_custom_resources() -> None:
    with serving(OBJECTS, forbidden=without({"customresourcedefinitions": []})) as cluster:
        known = entries(cluster, "can-i", "get", "po", "--as", "bob")
        custom = entries(cluster, "can-i", "get", "certs", "--as", "bob")
    assert known == []
    assert [entry["kind"] for entry in custom] == ["CustomResourceDefinition"]


def test_the_pods_of_a_replaced_workload_are_named_and_are_no_gap(tmp_path: Any) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "controller": True, "uid": "u"}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    metadata = {"name": "web", "namespace": "shop"}
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    owned = pod("shop", "web-1", app="web")
    owned["metadata"]["ownerReferences"] = [owner]
    file = tmp_path / "web.yaml"
    file.write_text(json.dumps(deployment))
    command = (
        "explain",
        "network",
        "--from",
        "Deployment/shop/web",
        "--to",
        "shop/db1",
        "--port",
        "80",
        "-f",
        str(file),
    )
    elsewhere = ("explain", "network", "--from", "prod/api", "--to", "prod/api", "--port", "80", "-f", str(file))
    with serving([*OBJECTS, deployment, owned], forbidden=without({})) as cluster:
        result, (entry,) = run(cluster, *command, "--strict"), entries(cluster, *command)
        assert entries(cluster, *elsewhere) == []
    assert result.exit_code == 3
    expected = "a file has Deployment/shop/web: the pods of its template stand in"
    assert f"not considered: 1 Pod ({expected})" in result.stdout
    assert entry == {
        "reason": "replaced",
        "kind": "Pod",
        "count": 1,
        "namespaces": ["shop"],
        "effect": expected,
    }


@pytest.mark.parametrize("plural", ["deployments", "none"])
def test_pods_name_the_workload_that_a_file_replaces_and_nobody_may_list(tmp_path: Any, plural: str) -> None:
    def owned_by(value: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
        owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "controller": True, "uid": "u"}
        return {**value, "metadata": {**value["metadata"], "ownerReferences": [owner]}}

    def workload(kind: str, name: str, app: str) -> dict[str, Any]:
        template = {"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        spec = {"selector": {"matchLabels": {"app": app}}, "template": template}
        return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": spec}

    for_shops = policy("shop", "closed")
    for_shops["spec"]["ingress"] = [{"from": [{"podSelector": {"matchLabels": {"app": "shop"}}}]}]
    replica_set = owned_by(workload("ReplicaSet", "web-5d9", "shop"), "Deployment", "web")
    running = owned_by(pod("shop", "web-5d9-x", app="shop"), "ReplicaSet", "web-5d9")
    objects = [pod("shop", "db1"), for_shops, workload("Deployment", "web", "shop"), replica_set, running]
    file = tmp_path / "web.yaml"
    file.write_text(json.dumps(workload("Deployment", "web", "other")))
    command = ("explain", "network", "--from", "Deployment/shop/web", "--to", "shop/db1", "--port", "80")
    with serving(objects, forbidden=without({plural: []})) as cluster:
        assert run(cluster, *command, "-f", str(file)).exit_code == 3
        reasons = [entry["reason"] for entry in entries(cluster, *command, "-f", str(file))]
        result = run(cluster, "diff", "--plane", "network", "-f", str(file), "-o", "json")
    assert "replaced" in reasons
    assert result.exit_code == 4
    assert [difference["change"] for difference in json.loads(result.stdout)["differences"]] == ["closes"]


@pytest.mark.parametrize("page", [1, 500])
def test_the_order_does_not_depend_on_which_answer_comes_first(page: int) -> None:
    forbidden = without({"networkpolicies": ["shop"], "nodes": [], "services": ["prod"], "roles": []})
    reads = []
    with serving(OBJECTS, forbidden=forbidden) as cluster:
        cluster.page = page
        for _ in range(5):
            snapshot = load_cluster(Cluster(context=ALICE, kubeconfig=cluster.kubeconfig))
            reads.append(([resource.identity for resource in snapshot], snapshot.unlisted))
    assert all(read == reads[0] for read in reads)
    assert list(reads[0][1]) == sorted(reads[0][1], key=lambda entry: (entry.kind, entry.group))


def test_a_failure_in_one_namespace_does_not_hide_the_others() -> None:
    objects = [*OBJECTS, policy("dev", "d")]
    with serving(objects, forbidden=without({"networkpolicies": ["shop", "prod"]})) as cluster:
        refusal = cluster.refusal

        def failing(user: str, plural: str, group: str, namespace: str) -> tuple[int, str] | None:
            if (plural, namespace) == ("networkpolicies", "prod"):
                return 500, "it does not work in prod"
            return refusal(user, plural, group, namespace)

        cluster.refusal = failing  # type: ignore[method-assign]
        snapshot = load_cluster(Cluster(context=ALICE, kubeconfig=cluster.kubeconfig), ("network",))
    assert [resource.name for resource in snapshot.of_kind("networking.k8s.io", "NetworkPolicy")] == ["closed"]
    reasons = {entry.reason: entry.namespaces for entry in snapshot.unlisted}
    assert reasons == {"forbidden": ("dev",), "unavailable": ("prod",)}


@pytest.mark.parametrize(
    ("entry", "asked", "missing"),
    [
        (UnlistedKind("K", "g", "forbidden", ""), None, ()),
        (UnlistedKind("K", "g", "forbidden", ""), {"a"}, ()),
        (UnlistedKind("K", "g", "forbidden", ""), {""}, None),
        (UnlistedKind("K", "g", "forbidden", "", ("a",)), {"a"}, None),
        (UnlistedKind("K", "g", "forbidden", "", ("a",)), {"a", "c", "b"}, ("b", "c")),
        (UnlistedKind("K", "g", "forbidden", "", ("a",)), None, ()),
        (UnlistedKind("K", "g", "forbidden", "", ("a",), ("b",)), {"a", "new"}, None),
        (UnlistedKind("K", "g", "forbidden", "", ("a",), ("b", "c")), None, ("b", "c")),
    ],
)
def test_the_namespaces_of_a_gap(entry: UnlistedKind, asked: set[str] | None, missing: tuple[str, ...] | None) -> None:
    assert entry.missing(asked) == missing


def test_a_kind_of_several_planes_is_named_once() -> None:
    with serving(OBJECTS, forbidden=without({"services": [], "accesspolicies": []})) as cluster:
        for group in ("agentic.networking.x-k8s.io", "agentic.prototype.x-k8s.io"):
            metadata = {"name": "a", "namespace": "shop"}
            cluster.put({"apiVersion": f"{group}/v0alpha0", "kind": "AccessPolicy", "metadata": metadata, "spec": {}})
        checked, listed = run(cluster, "check"), run(cluster, "list")
        omissions = entries(cluster, "check")
    for result in (checked, listed):
        assert result.stdout.count("not considered: Services (you may not list them)") == 1
    assert checked.stdout.count("not considered: AccessPolicies (you may not list them)") == 1
    assert [entry["group"] for entry in omissions if entry["kind"] == "AccessPolicy"] == [
        "agentic.networking.x-k8s.io",
        "agentic.prototype.x-k8s.io",
    ]
    (services,) = [entry for entry in omissions if entry["kind"] == "Service"]
    assert "ways in through Services are missing here" in services["effect"]
    assert "the tools of Services that are not known are missing here" in services["effect"]


def test_policies_of_other_systems_are_told_apart() -> None:
    calico = {**policy("shop", "c"), "apiVersion": "crd.projectcalico.org/v1"}
    cilium = {**policy("shop", "c"), "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy"}
    forbidden = without({"networkpolicies": [], "ciliumnetworkpolicies": []})
    with serving([*OBJECTS, calico, cilium], forbidden=forbidden) as cluster:
        result = run(cluster, *WEB_TO_DB)
    assert [line for line in result.stdout.splitlines() if line.startswith("not considered")] == [
        "not considered: CiliumNetworkPolicies (you may not list them)",
        "not considered: NetworkPolicies of Calico (you may not list them)",
        "not considered: NetworkPolicies (you may not list them)",
    ]


def test_compiling_names_the_kinds_that_would_be_enforced() -> None:
    calico = {**policy("shop", "c"), "apiVersion": "crd.projectcalico.org/v1"}
    gateway = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "g"}, "spec": {}}
    forbidden = without({"networkpolicies": ["shop"], "gateways": []})
    with serving([*OBJECTS, calico, gateway], forbidden=forbidden) as cluster:
        nft, envoy = run(cluster, "compile", "nft"), run(cluster, "compile", "envoy")
    # Calico's are not enforced by this table in any case.
    assert nft.stderr.splitlines()[-1:] == [
        "not considered: NetworkPolicies (you may not list them in default and prod)"
    ]
    assert envoy.stderr.splitlines() == ["not considered: Gateways (you may not list them)"]
    assert "not considered" not in nft.stdout + envoy.stdout


def test_policy_tests_name_namespaces_too(tmp_path: Any) -> None:
    test = {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "PolicyTest",
        "metadata": {"name": "smoke"},
        "spec": {
            "context": ALICE,
            "cases": [
                {
                    "name": "closed",
                    "network": {"from": "shop/web", "to": "shop/db1", "port": 80},
                    "expect": {"verdict": "Deny", "notConsidered": []},
                }
            ],
        },
    }
    (tmp_path / "test.json").write_text(json.dumps(test))
    shop = ["shop"]
    forbidden = without({"namespaces": shop, "pods": shop, "networkpolicies": shop, "nodes": []})
    with serving(OBJECTS, forbidden=forbidden) as cluster:
        result = CliRunner().invoke(root, ["test", str(tmp_path), "--kubeconfig", cluster.kubeconfig])
    assert result.exit_code == 0, result.output


def test_a_policy_that_asks_about_other_namespaces_needs_their_roles() -> None:
    expression = 'authorizer.group("").resource("pods").namespace("prod").check("get").allowed()'
    guard = {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "ClusterAuthorizationPolicy",
        "metadata": {"name": "guard"},
        "spec": {"effect": "Allow", "expression": "true"},
    }
    with serving([*OBJECTS, guard], forbidden=without({"rolebindings": ["shop"]})) as cluster:
        command = ("can-i", "get", "pods", "--as", "bob", "-n", "shop")
        assert entries(cluster, *command) == []
        cluster.put({**guard, "spec": {"effect": "Allow", "expression": expression}})
        assert [(entry["kind"], entry["namespaces"]) for entry in entries(cluster, *command)] == [
            ("RoleBinding", ["default", "prod"])
        ]


@pytest.mark.parametrize(("allowed", "named"), [([], True), (["shop"], True), (["shop", "prod"], False)])
def test_tools_of_backends_that_may_not_be_listed_are_missing(allowed: list[str], named: bool) -> None:
    group = "agentic.prototype.x-k8s.io"

    def in_gateway_api(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "shop"}
        return {"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}

    def backend(namespace: str) -> dict[str, Any]:
        metadata, spec = {"name": "orders", "namespace": namespace}, {"mcp": {"serviceName": "orders", "port": 80}}
        return {"apiVersion": f"{group}/v0alpha0", "kind": "XBackend", "metadata": metadata, "spec": spec}

    refs = [{"group": group, "kind": "XBackend", "name": "orders", "namespace": name} for name in ("shop", "prod")]
    listeners = [{"name": "mcp", "port": 80, "protocol": "HTTP"}]
    objects = [
        in_gateway_api("Gateway", "agents", {"gatewayClassName": "x", "listeners": listeners}),
        in_gateway_api("HTTPRoute", "orders", {"parentRefs": [{"name": "agents"}], "rules": [{"backendRefs": refs}]}),
        *map(backend, ("shop", "prod", "unrelated")),
    ]
    command = ("tools", "--caller", "shop/assistant", "--gateway", "shop/agents")
    with serving(objects, forbidden=without({"xbackends": allowed})) as cluster:
        kinds = [entry["kind"] for entry in entries(cluster, *command)]
        about_one = entries(cluster, *command, "--backend", "shop/orders") if allowed else []
        strict = run(cluster, *command, "--strict")
    assert kinds == ["XBackend"] * named
    assert about_one == []
    assert (strict.exit_code == 6) is named
