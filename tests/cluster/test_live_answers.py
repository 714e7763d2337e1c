"""Every command gives the same answer on a cluster as on files of the same objects (docs/clusters.md)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests import ROOT
from tests.labs.live_client import LiveClient, pod
from tierwall.cli.main import root

pytestmark = pytest.mark.engine

OLD, NEW = (ROOT / "examples" / "compare" / side / "shop.yaml" for side in ("old", "new"))
SHOP = {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}
# What the example lacks. All of it is about one namespace, as other tests use the same cluster.
MORE = f"""
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {{name: shop-closed}}
spec:
  priority: 7
  subject: {{namespaces: {SHOP}}}
  ingress:
  - {{action: Deny, from: [{{namespaces: {SHOP}}}], ports: [{{portNumber: {{protocol: TCP, port: 8080}}}}]}}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {{name: shop-out}}
spec:
  tier: Admin
  priority: 8
  subject: {{namespaces: {SHOP}}}
  egress: [{{action: Deny, to: [{{networks: [203.0.113.0/24]}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: misspelt, namespace: shop}}
spec: {{podSelector: {{matchLabels: {{app: bd}}}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: db, namespace: shop}}
spec: {{selector: {{app: db}}, ports: [{{port: 80, targetPort: 5432}}]}}
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {{name: lockdown, namespace: shop}}
---
apiVersion: tierwall.io/v1alpha1
kind: AuthorizationPolicy
metadata: {{name: robots, namespace: shop}}
spec: {{effect: Deny, expression: 'request.verb == "delete" && request.userInfo.username == "robot"'}}
"""
KINDS = (
    *("namespaces", "pods", "services", "networkpolicies", "adminnetworkpolicies", "ciliumnetworkpolicies"),
    *("clusternetworkpolicies.policy.networking.k8s.io", "gateways", "httproutes", "agentgatewaypolicies"),
    *("xbackends.agentic.prototype.x-k8s.io", "xaccesspolicies.agentic.prototype.x-k8s.io", "roles", "rolebindings"),
    *("clusterroles", "clusterrolebindings", "authorizationpolicies.tierwall.io", "customresourcedefinitions"),
)
TOOL = ("--caller", "shop/assistant", "--gateway", "shop/agents")
PLACE = ("--gateway", "shop/agents", "--listener", "mcp", "--route", "HTTPRoute/shop/orders")
SUPPORT = ("--as", "sam", "--as-group", "support")
JSON = ("-o", "json")
# The keys of places, in answers and in findings.
PLACES = ("source", "cluster", "path", "file", "line", "column", "related")
# Commands with their exit codes.
COMMANDS: list[tuple[int, tuple[str, ...]]] = [
    (0, ("explain", "network", "--from", "shop/web", "--to", "shop/db", "--port", "5432", *JSON)),
    (3, ("explain", "network", "--from", "shop/db", "--to", "shop/web", "--port", "8080", *JSON)),
    (0, ("explain", "network", "--from", "shop/web", "--to", "Service/shop/db", "--port", "80", *JSON)),
    (3, ("explain", "network", "--from", "shop/db", "--to", "203.0.113.7", "--port", "443", *JSON)),
    (6, ("explain", "network", "--from", "outside", "--to", "shop/db", "--port", "5432", "--strict", *JSON)),
    (0, ("list", "--focus", "shop", "--explain", "--denied", *JSON)),
    (0, ("compile", "nft", "--node", "shop-node")),
    (0, ("explain", "tool", *TOOL, "--backend", "shop/orders", "--tool", "status", *JSON)),
    (3, ("explain", "tool", *TOOL, "--backend", "shop/orders", "--tool", "refund", *JSON)),
    (0, ("tools", *TOOL, *JSON)),
    (0, ("compile", "envoy", "--gateway", "shop/agents", *JSON)),
    (0, ("effective", *PLACE, *JSON)),
    (0, ("explain", "gateway", *PLACE, *JSON)),
    (0, ("can-i", "list", "pods", "-n", "shop", *SUPPORT)),
    (3, ("can-i", "list", "pods", "-n", "default", *SUPPORT)),
    (0, ("can-i", "--list", "-n", "shop", *SUPPORT)),
    (3, ("explain", "api", "--user", "robot", "--verb", "delete", "--resource", "pods", "-n", "shop", *JSON)),
    (0, ("status", "XAccessPolicy/shop/orders", "AgentgatewayPolicy/shop/limits", *JSON)),
    (4, ("check", "--for-namespace", "shop", *JSON)),
]


@pytest.fixture(scope="module")
def shop(live: LiveClient, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the objects, and return a file of them, as kubectl prints them."""
    with live.lock():
        if live.request("GET", "/api/v1/namespaces/shop")[0] == 404:
            live.namespace("shop")
            live.create(*shop_objects())
    file = tmp_path_factory.mktemp("shop") / "objects.json"
    file.write_text(live.kubectl("get", ",".join(KINDS), "--all-namespaces", "-o", "json"))
    return file


def shop_objects() -> Iterator[dict[str, Any]]:
    for value in yaml.safe_load_all(OLD.read_text()):
        if value["kind"] == "Pod":
            name, labels = value["metadata"]["name"], value["metadata"]["labels"]
            address, port = {"web": ("10.244.7.1", 8080), "db": ("10.244.7.2", 5432)}[name]
            value = pod("shop", name, labels, address, port, node="shop-node")
        yield value
    yield from yaml.safe_load_all(MORE)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(root, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.mark.parametrize(("code", "command"), COMMANDS)
def test_the_answer_is_that_of_files(live: LiveClient, shop: Path, code: int, command: tuple[str, ...]) -> None:
    of_cluster = run(*command, "--context", "admin", "--kubeconfig", live.kubeconfig)
    of_files = run(*command, "-f", shop)
    assert (of_cluster.exit_code, of_cluster.stderr) == (code, of_files.stderr)
    assert of_files.exit_code == code
    assert plain(command, of_cluster.stdout) == plain(command, of_files.stdout)


def test_a_change_to_the_cluster_is_compared_as_files_are(live: LiveClient, shop: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        shutil.copy(shop, folder)
    shutil.copy(NEW, new)
    of_cluster = run("diff", "--context", "admin", "--kubeconfig", live.kubeconfig, "-f", NEW, *JSON)
    of_files = run("diff", old, new, *JSON)
    assert (of_cluster.exit_code, of_files.exit_code) == (4, 4)
    differences = json.loads(of_cluster.stdout)["differences"]
    assert _without_places(differences) == _without_places(json.loads(of_files.stdout)["differences"])
    assert {difference["plane"] for difference in differences} == {"network", "tool", "gateway", "api"}


@pytest.mark.usefixtures("shop")
def test_a_policy_test_is_judged_against_the_cluster(live: LiveClient, tmp_path: Path) -> None:
    """Its resources lie over the cluster: an isolated db makes the case fail."""
    case = {"network": {"from": "shop/web", "to": "shop/db", "port": 5432}, "expect": {"verdict": "Allow"}}
    spec: dict[str, Any] = {"context": "admin", "cases": [case | {"name": "web may read"}]}
    test = {"apiVersion": "tierwall.io/v1alpha1", "kind": "PolicyTest", "metadata": {"name": "smoke"}, "spec": spec}
    (tmp_path / "test.yaml").write_text(json.dumps(test))
    passed = run("test", tmp_path / "test.yaml", "--kubeconfig", live.kubeconfig)
    assert passed.exit_code == 0, passed.output
    closed = yaml.safe_load(OLD.read_text().split("---")[2]) | {"spec": {"podSelector": {}}}
    (tmp_path / "closed.yaml").write_text(json.dumps(closed))
    failed = run("test", tmp_path / "test.yaml", "--kubeconfig", live.kubeconfig, "-f", tmp_path / "closed.yaml")
    assert failed.exit_code == 4, failed.output


def plain(command: tuple[str, ...], text: str) -> Any:
    """Leave out where objects stand. Of `check` keep what it says about the objects of this module."""
    if command[-1] != "json":
        return text
    value = _without_places(json.loads(text))
    if command[0] == "check":
        return sorted((finding for finding in value["diagnostics"] if "shop" in finding["object"]), key=repr)
    return value


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_places(part) for key, part in value.items() if key not in PLACES}
    return [_without_places(part) for part in value] if isinstance(value, list) else value
