"""Manifests of the chart: definitions, the webhook that warns, pods under Pod Security, policies for its own pods."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.labs.chart import CHART, EVERYTHING, NAMESPACE, OTHER_APIS, helm, rendered
from tierwall.analyze.change_findings import KINDS
from tierwall.cli.main import root
from tierwall.resources.kinds.registry import all_kinds, versions_of
from tierwall.serve.controller.infrastructure import CERTIFICATES_PORT, XDS_PORT, read_template
from tierwall.version import __version__

DEFINITIONS = CHART / "files" / "crds.yaml"
KEEP = "helm.sh/resource-policy"


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], dict[str, Any]]:
    """All objects that the chart can install, by kind and name."""
    return {
        (value["kind"], f"{value['metadata'].get('namespace', '')}/{value['metadata']['name']}"): value
        for value in rendered(EVERYTHING, OTHER_APIS)
    }


def test_the_definitions_are_those_of_this_version(renew: bool) -> None:
    kinds = {kind.kind for kind in all_kinds() if kind.group == "tierwall.io" and kind.scope != "None"}
    done = CliRunner().invoke(root, ["crds", *sorted(kinds)])
    assert done.exit_code == 0, done.output
    if renew:
        DEFINITIONS.write_text(done.stdout)
    assert DEFINITIONS.read_text() == done.stdout
    names = {value["spec"]["names"]["kind"] for value in yaml.safe_load_all(done.stdout)}
    assert {"NodeReport", "AuthorizationPolicy", "ClusterAuthorizationPolicy"} <= names


@pytest.mark.parametrize("keep", [True, False])
def test_definitions_stay_when_the_chart_goes_unless_told_otherwise(keep: bool) -> None:
    written = {value["metadata"]["name"]: value["spec"] for value in yaml.safe_load_all(DEFINITIONS.read_text())}
    installed = [value for value in rendered({"crds": {"keep": keep}}) if value["kind"] == "CustomResourceDefinition"]
    assert {value["metadata"]["name"]: value["spec"] for value in installed} == written
    for value in installed:
        assert value["metadata"]["annotations"].get(KEEP) == ("keep" if keep else None)
        assert "tierwall.io/release" in value["metadata"]["annotations"]


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_webhook_only_warns(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    (webhook,) = objects["ValidatingWebhookConfiguration", "/tierwall-warnings"]["webhooks"]
    assert (webhook["failurePolicy"], webhook["timeoutSeconds"], webhook["sideEffects"]) == ("Ignore", 2, "None")
    (left_out,) = webhook["namespaceSelector"]["matchExpressions"]
    assert (left_out["operator"], left_out["values"]) == ("NotIn", [NAMESPACE])
    service = webhook["clientConfig"]["service"]
    ports = objects["Service", f"{NAMESPACE}/{service['name']}"]["spec"]["ports"]
    assert service["port"] in {port["port"] for port in ports}
    assert not any("*" in word for rule in webhook["rules"] for words in rule.values() for word in words)


def test_the_webhook_goes_before_anything_else() -> None:
    with_hooks = helm("template", "guard", str(CHART), "--namespace", NAMESPACE)
    (hook,) = (
        value
        for value in yaml.safe_load_all(with_hooks)
        if value and "helm.sh/hook" in value["metadata"].get("annotations", {})
    )
    assert (hook["kind"], hook["metadata"]["name"]) == ("ValidatingWebhookConfiguration", "tierwall-warnings")
    # It is deleted by its name before the hook is made, and the hook as soon as it is there.
    assert hook["metadata"]["annotations"] == {
        "helm.sh/hook": "pre-delete",
        "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
    }
    assert hook["webhooks"] == []


def test_the_node_agent_has_one_capability_and_nothing_of_the_disk(
    objects: dict[tuple[str, str], dict[str, Any]],
) -> None:
    pod = objects["DaemonSet", f"{NAMESPACE}/tierwall-node-agent"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert not security["allowPrivilegeEscalation"]
    assert security["readOnlyRootFilesystem"]
    assert pod["hostNetwork"]
    assert not pod.get("hostPID")
    assert not pod.get("hostIPC")
    assert [*pod["volumes"][0]] == ["name", "emptyDir"]
    assert len(pod["volumes"]) == 1


def test_pods_run_on_linux_only(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    remove = yaml.safe_load((CHART.parents[1] / "remove" / "daemonset.yaml").read_text())
    workloads = [value for (kind, _), value in objects.items() if kind in ("Deployment", "DaemonSet")]
    for value in (*workloads, remove):
        assert value["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}


@pytest.mark.parametrize("component", ["controller", "authorizer"])
def test_replicas_survive_a_node(objects: dict[tuple[str, str], dict[str, Any]], component: str) -> None:
    name = f"{NAMESPACE}/tierwall-{component}"
    deployment, budget = objects["Deployment", name]["spec"], objects["PodDisruptionBudget", name]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["replicas"] == 2
    assert budget["maxUnavailable"] == 1
    # A pod that waits, for its Secret or for the API server, must not keep anybody from draining its node.
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    pod = deployment["template"]["spec"]
    # The scheduler ignores all of them on nodes that lack a label of one, and every node has this one.
    (spread,) = pod["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    (apart,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert apart["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"
    for selector in (spread["labelSelector"], apart["podAffinityTerm"]["labelSelector"]):
        assert selector["matchLabels"].items() <= labels.items()
    (container,) = deployment["template"]["spec"]["containers"]
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)


def test_an_authorizer_stays_in_its_service_while_the_api_server_is_away(
    objects: dict[tuple[str, str], dict[str, Any]],
) -> None:
    """`/readyz` says no then. The API server could ask no replica when it is back, and no replica could read again."""
    (container,) = objects["Deployment", f"{NAMESPACE}/tierwall-authorizer"]["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    # Nothing listens before it has read everything, however long that takes.
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] >= 3600


def test_the_notes_install_an_authorizer_that_can_start_while_it_is_down() -> None:
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    assert "--api-server-user system:serviceaccount:{{ .Release.Namespace }}:tierwall-authorizer" in notes
    assert "--exempt-group system:nodes" in notes


@pytest.mark.parametrize("component", ["controller", "authorizer"])
def test_policies_admit_every_port_that_is_served(
    objects: dict[tuple[str, str], dict[str, Any]], component: str
) -> None:
    name = f"{NAMESPACE}/tierwall-{component}"
    policy, deployment = objects["NetworkPolicy", name]["spec"], objects["Deployment", name]["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    admitted = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert admitted == {port["containerPort"] for port in container["ports"]}
    assert policy["podSelector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_every_service_leads_to_a_port_of_its_pods(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    for (kind, name), service in objects.items():
        if kind == "Service":
            template = objects["Deployment", name]["spec"]["template"]
            (container,) = template["spec"]["containers"]
            assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
            named = {port["name"] for port in container["ports"]}
            assert {port["targetPort"] for port in service["spec"]["ports"]} == named


def test_the_webhook_is_asked_about_just_the_kinds_that_are_judged() -> None:
    (configuration,) = (value for value in rendered() if value["kind"] == "ValidatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]
    asked = {
        (group, resource): set(rule["apiVersions"])
        for rule in webhook["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    served = [version for key in KINDS for version in versions_of(*key).values() if version.served]
    assert asked.keys() == {(version.group, version.plural) for version in served}
    for (group, _), versions in asked.items():
        assert versions == {version.version for version in served if version.group == group}
    assert all(rule["operations"] == ["CREATE", "UPDATE"] for rule in webhook["rules"])
    assert (webhook["failurePolicy"], webhook["sideEffects"], webhook["timeoutSeconds"]) == ("Ignore", "None", 2)


def test_the_template_of_envoys_is_one_that_the_controller_reads(
    objects: dict[tuple[str, str], dict[str, Any]],
) -> None:
    content = objects["ConfigMap", f"{NAMESPACE}/tierwall-envoy"]["data"]["envoy.json"]
    template = read_template(content.encode())
    service = objects["Service", f"{NAMESPACE}/tierwall-controller"]
    assert template.controller == f"{service['metadata']['name']}.{NAMESPACE}.svc"
    assert {port["port"] for port in service["spec"]["ports"]} >= {XDS_PORT, CERTIFICATES_PORT}
