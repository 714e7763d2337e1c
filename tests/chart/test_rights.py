"""The chart grants each ServiceAccount just what its process uses: exactly what `tierwall can-i --list` says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.docs.test_reader_roles import plural
from tests.labs.chart import EVERYTHING, NAMESPACE, OTHER_APIS, rendered
from tierwall.cli.main import root
from tierwall.cluster.wanted import followed_kinds
from tierwall.serve.controller.kinds import OF_THE_RELEASE, controller_kinds

READ = "get,list,watch"
Permission = tuple[str, str]


def read(group: str, *resources: str) -> set[Permission]:
    """The permissions to read resources of a group."""
    return {(READ, _full(resource, group)) for resource in resources}


def write(verbs: str, group: str, *resources: str) -> set[Permission]:
    """The permissions to do something to resources of a group."""
    return {(verbs, _full(resource, group)) for resource in resources}


def _full(resource: str, group: str) -> str:
    return f"{resource}.{group}" if group else resource


ADMIN = ("adminnetworkpolicies", "baselineadminnetworkpolicies", "clusternetworkpolicies")
AGENTIC = ("agentic.networking.x-k8s.io", "agentic.prototype.x-k8s.io")
GATEWAY = "gateway.networking.k8s.io"
NODE_AGENT = (
    read("", "namespaces", "nodes", "pods", "services")
    | read("networking.k8s.io", "networkpolicies")
    | read("policy.networking.k8s.io", *ADMIN)
)
NODE_AGENT_HERE = write("create,get,patch,update", "tierwall.io", "nodereports", "nodereports/status") | write(
    "create,get,patch,update", "coordination.k8s.io", "leases"
)
CONTROLLER = (
    NODE_AGENT
    | read("", "serviceaccounts")
    | read("agentgateway.dev", "agentgatewaybackends", "agentgatewaypolicies")
    | read(AGENTIC[0], "accesspolicies", "xaccesspolicies", "xbackends")
    | read(AGENTIC[1], "accesspolicies", "xaccesspolicies", "xbackends")
    | read("extensions", "ingresses")
    | read(GATEWAY, "gatewayclasses", "gateways", "grpcroutes", "httproutes", "listenersets", "referencegrants")
    | read(GATEWAY, "backendtlspolicies", "tcproutes", "tlsroutes", "udproutes")
    | read("gateway.networking.x-k8s.io", "xlistenersets")
    | read("inference.networking.k8s.io", "inferencepools")
    | read("networking.k8s.io", "ingresses")
    | read("route.openshift.io", "routes")
    | read("rbac.authorization.k8s.io", "clusterrolebindings", "clusterroles", "rolebindings", "roles")
    | write("patch,update", "agentgateway.dev", "agentgatewaypolicies/status")
    | write("patch,update", AGENTIC[0], "accesspolicies/status", "xaccesspolicies/status")
    | write("patch,update", AGENTIC[1], "accesspolicies/status", "xaccesspolicies/status")
    | write("patch,update", GATEWAY, "backendtlspolicies/status")
    | write("patch,update", GATEWAY, "gatewayclasses/status", "gateways/status", "listenersets/status")
    | write("patch,update", GATEWAY, *(f"{kind}routes/status" for kind in ("grpc", "http", "tcp", "tls", "udp")))
    | write("patch,update", "gateway.networking.x-k8s.io", "xlistenersets/status")
    | write("patch,update", "policy.networking.k8s.io", *(f"{kind}/status" for kind in ADMIN))
    | write("create,patch", "events.k8s.io", "events")
    | write("get,patch,watch", "admissionregistration.k8s.io", "validatingwebhookconfigurations=tierwall-warnings")
)
CONTROLLER_HERE = (
    write("create,get,list,update,watch", "coordination.k8s.io", "leases")
    | read("tierwall.io", "nodereports")
    | write("create", "", "secrets")
    | write("get,update", "", "secrets=tierwall-certificates")
)
REPORTS = write("create,delete,get,list,update,watch", "openreports.io", "clusterreports", "reports")
GATEWAY_CLASS = write("get", "apiextensions.k8s.io", f"customresourcedefinitions=gatewayclasses.{GATEWAY}")
GATEWAYS = (
    write("get", "", "configmaps", "secrets")
    | write("create,delete,update", "", "services")
    | write("create,delete,list,update", "apps", "deployments")
)
AUTHORIZER = (
    read("", "namespaces")
    | read("apiextensions.k8s.io", "customresourcedefinitions")
    | read("apiregistration.k8s.io", "apiservices")
    | read("rbac.authorization.k8s.io", "clusterrolebindings", "clusterroles", "rolebindings", "roles")
    | read("tierwall.io", "authorizationpolicies", "clusterauthorizationpolicies")
)
BRIDGE = write("get,watch", "admissionregistration.k8s.io", "validatingwebhookconfigurations=tierwall-authorizer")
CANARY = write("create", "", "configmaps")

# What each ServiceAccount may do by default, and with everything on: everywhere, and in which namespaces what else.
USUAL: dict[str, dict[str, set[Permission]]] = {
    "controller": {"": CONTROLLER, NAMESPACE: CONTROLLER_HERE},
    "node-agent": {"": NODE_AGENT, NAMESPACE: NODE_AGENT_HERE},
    "authorizer": {"": set()},
}
FULL: dict[str, dict[str, set[Permission]]] = {
    "controller": {
        "": CONTROLLER | REPORTS | GATEWAY_CLASS,
        NAMESPACE: CONTROLLER_HERE,
        "shop": GATEWAYS,
        "bank": GATEWAYS,
    },
    "node-agent": USUAL["node-agent"],
    "authorizer": {"": AUTHORIZER | BRIDGE, NAMESPACE: CANARY},
}
ELSEWHERE = "kube-system"


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two releases, rendered to files."""
    folder = tmp_path_factory.mktemp("releases")
    made = {"usual": rendered(), "full": rendered(EVERYTHING, OTHER_APIS)}
    for name, objects in made.items():
        # No other objects count for rights.
        roles = [value for value in objects if value["apiVersion"] == "rbac.authorization.k8s.io/v1"]
        (folder / f"{name}.yaml").write_text(yaml.safe_dump_all(roles))
    return {name: folder / f"{name}.yaml" for name in made}


def permissions(release: Path, component: str, namespace: str) -> set[Permission]:
    """Return what the ServiceAccount of a component may do in a namespace."""
    user = f"system:serviceaccount:{NAMESPACE}:tierwall-{component}"
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated")
    command = ["can-i", "--list", "-o", "json", "--as", user, "-n", namespace, "-f", str(release)]
    command += [word for group in groups for word in ("--as-group", group)]
    done = CliRunner().invoke(root, command)
    listed = json.loads(done.stdout)["permissions"]
    assert all(entry["effect"] == "Allow" for entry in listed)
    return {permission for entry in listed for permission in _permissions(entry)}


def _permissions(entry: dict[str, Any]) -> Iterator[Permission]:
    verbs = ",".join(sorted(entry["verbs"]))
    assert not entry.get("urls")
    for group in entry["groups"]:
        for resource in entry["resources"]:
            for name in entry.get("names") or [""]:
                yield verbs, _full(f"{resource}={name}" if name else resource, group)


@pytest.mark.parametrize("component", USUAL)
@pytest.mark.parametrize(("release", "granted"), [("usual", USUAL), ("full", FULL)])
def test_each_may_do_just_what_it_does(
    releases: dict[str, Path], release: str, granted: dict[str, dict[str, set[Permission]]], component: str
) -> None:
    grants = granted[component]
    for namespace in (NAMESPACE, "shop", "bank", ELSEWHERE):
        expected = grants[""] | grants.get(namespace, set())
        assert permissions(releases[release], component, namespace) == expected, namespace


@pytest.mark.parametrize("release", ["usual", "full"])
def test_nothing_is_granted_by_an_asterisk_and_nothing_to_others(releases: dict[str, Path], release: str) -> None:
    objects = list(yaml.safe_load_all(releases[release].read_text()))
    roles = [value for value in objects if value["kind"] in ("Role", "ClusterRole")]
    assert roles
    for role in roles:
        for rule in role["rules"]:
            assert not any("*" in word for words in rule.values() for word in words), role["metadata"]
            assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])
        assert "aggregationRule" not in role
    for binding in objects:
        if binding["kind"].endswith("Binding") and "subjects" in binding:
            assert [subject["kind"] for subject in binding["subjects"]] == ["ServiceAccount"]
            assert {subject["namespace"] for subject in binding["subjects"]} == {NAMESPACE}


def _read_by(kinds: Any) -> set[Permission]:
    return {(READ, _full(plural(group, kind), group)) for group, kind in kinds}


def test_what_is_read_is_what_the_processes_follow() -> None:
    controller = [key for key in controller_kinds(warns=True) if key not in OF_THE_RELEASE]
    assert _read_by(controller) == {entry for entry in CONTROLLER if entry[0] == READ}
    assert _read_by(followed_kinds(("network",), has_files=False)) == NODE_AGENT
    assert _read_by(followed_kinds(("api", "aggregation"), has_files=False)) == AUTHORIZER
