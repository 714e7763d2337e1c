"""Policies of other systems are named in every answer that they could change (docs/reference/sources.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

import tierwall
from tests.worlds import tool_objects as tool
from tests.worlds.network_objects import namespace, pod
from tierwall.cli.main import root
from tierwall.resources.kinds.registry import read_data

Object = dict[str, Any]


def foreign(api_version: str, kind: str, name: str, namespace: str = "", **more: Any) -> Object:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


PODS = (pod("shop", "web"), pod("shop", "db"), pod("bank", "vault"))


def left_out(*objects: Object, source: str = "shop/web", to: str = "shop/db") -> list[str]:
    world = tierwall.load(objects=(*PODS, *objects))
    answer = world.ask(tierwall.NetworkQuestion(source=source, to=to, port=80))
    return [f"{omission.reason} {omission.kind} {omission.count}" for omission in answer.not_considered]


def test_a_policy_in_the_namespace_of_an_end_is_named() -> None:
    policies = (
        foreign("cilium.io/v2", "CiliumNetworkPolicy", "lockdown", "shop"),
        foreign("cilium.io/v2", "CiliumNetworkPolicy", "other", "bank"),
    )
    assert left_out(*policies) == ["foreign CiliumNetworkPolicy 1"]
    assert left_out(*policies, to="bank/vault") == ["foreign CiliumNetworkPolicy 2"]
    assert left_out(policies[1]) == []


def test_a_policy_for_the_whole_cluster_is_always_named() -> None:
    assert left_out(foreign("cilium.io/v2", "CiliumClusterwideNetworkPolicy", "all")) == [
        "foreign CiliumClusterwideNetworkPolicy 1"
    ]
    # Istio applies the policies of its root namespace everywhere.
    root_policy = foreign("security.istio.io/v1", "AuthorizationPolicy", "mesh", "istio-system")
    assert left_out(root_policy) == ["foreign AuthorizationPolicy 1"]
    assert left_out(foreign("security.istio.io/v1", "AuthorizationPolicy", "mesh", "bank")) == []


def test_an_object_that_calico_serves_in_two_groups_counts_once() -> None:
    groups = ("crd.projectcalico.org/v1", "projectcalico.org/v3")
    assert left_out(*(foreign(group, "GlobalNetworkPolicy", "guard") for group in groups)) == [
        "foreign GlobalNetworkPolicy 1"
    ]


def test_other_networks_are_named_as_such() -> None:
    assert left_out(foreign("k8s.ovn.org/v1", "UserDefinedNetwork", "blue", "shop")) == ["network UserDefinedNetwork 1"]
    assert left_out(foreign("kubevirt.io/v1", "VirtualMachineInstance", "vm", "shop")) == [
        "network VirtualMachineInstance 1"
    ]


def test_a_kind_of_the_same_name_in_another_group_is_not_foreign() -> None:
    assert left_out(foreign("example.org/v1", "CiliumNetworkPolicy", "x", "shop")) == []


@pytest.mark.parametrize("line", read_data("foreign.json"), ids=lambda line: f"{line['plane']} {line['group']}")
def test_every_line_of_the_table_names_its_objects(line: Object) -> None:
    kinds = [kind if kind != "*" else "Anything" for key in ("namespaced", "everywhere") for kind in line.get(key, ())]
    objects = [foreign(f"{line['group']}/v1".removeprefix("/"), kind, "x", "shop") for kind in kinds]
    if line.get("fields"):
        objects = [agentgateway(traffic={"authorization": {}}), tool.backend()]
    if line.get("bound"):
        bindings = [f"{kind}Binding" for kind in kinds]
        objects += [foreign(f"{line['group']}/v1", kind, "x", spec={"policyName": "x"}) for kind in bindings]
    omissions = tierwall.load(objects=objects).omissions(line["plane"])
    assert {omission.kind for omission in omissions} == set(kinds)
    assert {omission.owner for omission in omissions} == {line["owner"]}
    assert {omission.reason for omission in omissions} == {line.get("reason", "foreign")}


def attached(kind: str, name: str, target: str = "Gateway", **more: Any) -> Object:
    ref = {"group": "gateway.networking.k8s.io", "kind": target, "name": name}
    return foreign("gateway.envoyproxy.io/v1alpha1", kind, f"on-{name}", "prod", spec={"targetRefs": [ref], **more})


def tool_kinds(*objects: Object) -> list[str | None]:
    world = tierwall.load(objects=[*tool.guarded(), *objects])
    question = tierwall.ToolQuestion(gateway="prod/prod-gateway", backend="prod/payment-service")
    return [omission.kind for omission in world.ask(question).not_considered]


def test_a_policy_on_another_gateway_does_not_matter() -> None:
    assert tool_kinds(attached("SecurityPolicy", "prod-gateway")) == ["SecurityPolicy"]
    assert tool_kinds(attached("SecurityPolicy", "other")) == []
    assert tool_kinds(attached("SecurityPolicy", "other", targetSelectors=[{}])) == ["SecurityPolicy"]
    # The question does not say which route it takes.
    assert tool_kinds(attached("SecurityPolicy", "route", "HTTPRoute")) == ["SecurityPolicy"]
    istio = {"targetRef": {"kind": "Gateway", "name": "other"}}
    assert tool_kinds(foreign("security.istio.io/v1", "AuthorizationPolicy", "a", "prod", spec=istio)) == []
    assert tool_kinds(foreign("security.istio.io/v1", "AuthorizationPolicy", "a", "prod")) == ["AuthorizationPolicy"]


def agentgateway(name: str = "prod-gateway", **spec: Any) -> Object:
    ref = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": name}
    return foreign("agentgateway.dev/v1alpha1", "AgentgatewayPolicy", "p", "prod", spec={"targetRefs": [ref], **spec})


def test_authorization_of_agentgateway_matters_to_tool_calls() -> None:
    rules = {"policy": {"matchExpressions": ["true"]}}
    assert tool_kinds(agentgateway(traffic={"authorization": rules})) == ["AgentgatewayPolicy"]
    assert tool_kinds(agentgateway(backend={"mcp": {"authorization": rules}})) == ["AgentgatewayPolicy"]
    assert tool_kinds(agentgateway(traffic={"timeouts": {"request": "5s"}})) == []
    assert tool_kinds(agentgateway("other", traffic={"authorization": rules})) == []
    # Where nobody asks about tools, it is a policy like any other that Tierwall reads.
    assert tierwall.load(objects=[agentgateway(traffic={"authorization": rules})]).omissions("tool") == ()


def test_settings_that_others_make_matter_where_they_are_made() -> None:
    gateway = tool.gateway("gw")
    policies = [attached("ClientTrafficPolicy", "gw"), attached("BackendTrafficPolicy", "other")]
    world = tierwall.load(objects=[gateway, *policies])
    answer = world.effective(gateway="prod/gw")
    assert [omission.kind for omission in answer.not_considered] == ["ClientTrafficPolicy"]
    assert {omission.kind for omission in world.not_considered} == {"ClientTrafficPolicy", "BackendTrafficPolicy"}


def api_kinds(*objects: Object, **question: Any) -> list[str | None]:
    grant = [
        foreign("rbac.authorization.k8s.io/v1", "ClusterRole", "all", rules=[_EVERYTHING]),
        foreign(
            "rbac.authorization.k8s.io/v1",
            "ClusterRoleBinding",
            "all",
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "all"},
            subjects=[{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}],
        ),
    ]
    world = tierwall.load(objects=(*grant, *objects))
    asked = {"user": "alice", "verb": "create", "resource": "pods", "namespace": "shop", **question}
    return [omission.kind for omission in world.ask(tierwall.ApiQuestion(**asked)).not_considered]


_EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


def test_admission_matters_to_writes_that_are_allowed() -> None:
    quota = foreign("v1", "ResourceQuota", "small", "shop")
    assert api_kinds(quota) == ["ResourceQuota"]
    assert api_kinds(quota, verb="get") == []
    assert api_kinds(quota, user="mallory") == []
    assert api_kinds(quota, namespace="bank") == []


def test_an_admission_policy_counts_only_with_a_binding() -> None:
    policy = foreign("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "guard")
    binding = foreign(
        "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", "b", spec={"policyName": "guard"}
    )
    assert api_kinds(policy) == []
    assert api_kinds(policy, binding) == ["ValidatingAdmissionPolicy"]


def test_webhooks_of_tierwall_are_not_foreign() -> None:
    hook = "ValidatingWebhookConfiguration"
    assert api_kinds(foreign("admissionregistration.k8s.io/v1", hook, "tierwall.io")) == []
    assert api_kinds(foreign("admissionregistration.k8s.io/v1", hook, "other")) == [hook]


def test_another_authorizer_matters_to_every_verb() -> None:
    cedar = foreign("cedar.k8s.aws/v1alpha1", "Policy", "p")
    assert api_kinds(cedar, verb="get") == api_kinds(cedar, user="mallory") == ["Policy"]


def test_pod_security_labels_matter_to_pods() -> None:
    labelled = namespace("shop", **{"pod-security.kubernetes.io/enforce": "restricted"})
    assert api_kinds(labelled) == ["Namespace"]
    assert api_kinds(labelled, resource="services") == []
    assert api_kinds(namespace("shop", **{"pod-security.kubernetes.io/enforce": "privileged"})) == []


def run(tmp_path: Path, *arguments: str) -> Result:
    policy = foreign("cilium.io/v2", "CiliumNetworkPolicy", "lockdown", "shop")
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all([*PODS, policy, {**policy, "metadata": _SECOND}]))
    return CliRunner().invoke(root, [*arguments, "-f", str(tmp_path)])


_SECOND = {"name": "second", "namespace": "shop"}
_EXPLAIN = ("explain", "network", "--from", "shop/web", "--to", "shop/db", "--port", "80")


def test_the_last_line_of_text_says_what_was_not_considered(tmp_path: Path) -> None:
    for command in (_EXPLAIN, ("list",)):
        *_, last = run(tmp_path, *command).stdout.splitlines()
        assert last.startswith("not considered: 2 CiliumNetworkPolicies (Cilium may decide otherwise), first ")
        assert last.endswith("objects.yaml:34")


def test_data_stays_clean(tmp_path: Path) -> None:
    listed = run(tmp_path, "list", "-o", "csv")
    assert "not considered" not in listed.stdout
    assert "not considered: 2 CiliumNetworkPolicies" in listed.stderr
    assert json.loads(run(tmp_path, "list", "-o", "json").stdout)["notConsidered"][0]["count"] == 2


def test_strict_turns_an_incomplete_answer_into_exit_code_6(tmp_path: Path) -> None:
    assert run(tmp_path, *_EXPLAIN).exit_code == 0
    assert run(tmp_path, *_EXPLAIN, "--strict").exit_code == 6
    assert (
        run(tmp_path, "explain", "network", "--from", "no/pod", "--to", "a/b", "--port", "1", "--strict").exit_code == 1
    )
    # Nothing foreign concerns these ends.
    elsewhere = ("explain", "network", "--from", "bank/vault", "--to", "bank/vault", "--port", "80", "--strict")
    assert run(tmp_path, *elsewhere).exit_code == 0


def test_strict_loading_raises(tmp_path: Path) -> None:
    with pytest.raises(tierwall.InputError, match="CiliumNetworkPolicy"):
        tierwall.load(objects=[foreign("cilium.io/v2", "CiliumNetworkPolicy", "x", "shop")], strict=True)


def test_a_policy_with_targets_in_another_namespace_matters_there() -> None:
    def policy(**target: str) -> Object:
        spec = {"targetRef": {"group": "gateway.networking.k8s.io", **target}}
        return foreign("gateway.envoyproxy.io/v1alpha1", "EnvoyPatchPolicy", "p", "system", spec=spec)

    assert tool_kinds(policy(kind="Gateway", name="prod-gateway")) == []
    assert tool_kinds(policy(kind="Gateway", name="prod-gateway", namespace="prod")) == ["EnvoyPatchPolicy"]
    assert tool_kinds(policy(kind="GatewayClass", name="shared")) == ["EnvoyPatchPolicy"]


def test_policies_of_a_namespace_do_not_matter_to_objects_without() -> None:
    quota = foreign("v1", "ResourceQuota", "small", "shop")
    assert api_kinds(quota, namespace="") == ["ResourceQuota"]
    roles = {"group": "rbac.authorization.k8s.io", "resource": "clusterroles", "namespace": ""}
    assert api_kinds(quota, **roles) == []
    assert api_kinds(quota, resource="namespaces", namespace="") == []
    policies = {"group": "tierwall.io", "resource": "clusterauthorizationpolicies", "namespace": ""}
    assert api_kinds(quota, **policies) == []
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget"}
    spec = {"group": "example.org", "names": names, "scope": "Cluster", "versions": []}
    definition = foreign("apiextensions.k8s.io/v1", "CustomResourceDefinition", "widgets.example.org", spec=spec)
    widgets = {"group": "example.org", "resource": "widgets", "namespace": ""}
    assert api_kinds(quota, **widgets) == ["ResourceQuota"]
    assert api_kinds(quota, definition, **widgets) == []


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [("policies.kubewarden.io/v1", "AdmissionPolicy"), ("policies.kyverno.io/v1", "NamespacedValidatingPolicy")],
)
def test_admission_policies_of_a_namespace_matter_in_it(api_version: str, kind: str) -> None:
    assert api_kinds(foreign(api_version, kind, "p", "shop")) == [kind]
    assert api_kinds(foreign(api_version, kind, "p", "bank")) == []


def test_admission_sees_connections_and_any_verb() -> None:
    hook = foreign("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "h")
    everything: Object = {"verb": "*", "group": "*", "resource": "*"}
    for question in ({"verb": "get", "subresource": "exec"}, {"verb": "connect"}, everything):
        assert api_kinds(hook, **question) == ["ValidatingWebhookConfiguration"], question
    assert api_kinds(hook, verb="get", subresource="log") == []
    labelled = namespace("shop", **{"pod-security.kubernetes.io/enforce": "restricted"})
    assert api_kinds(labelled, resource="po") == api_kinds(labelled, **everything) == ["Namespace"]


def test_egress_networks_of_linkerd_for_all_namespaces_matter_everywhere() -> None:
    assert left_out(foreign("policy.linkerd.io/v1alpha1", "EgressNetwork", "all", "linkerd-egress")) == [
        "foreign EgressNetwork 1"
    ]


def test_a_list_between_named_ends_names_what_concerns_them(tmp_path: Path) -> None:
    policies = [foreign("cilium.io/v2", "CiliumNetworkPolicy", "x", name) for name in ("shop", "bank")]
    world = tierwall.load(objects=(*PODS, *policies))
    assert [omission.count for omission in world.connections().not_considered] == [2]
    assert [omission.count for omission in world.connections(sources=["shop"]).not_considered] == [2]
    (omission,) = world.connections(sources=["shop"], destinations=["shop/db"]).not_considered
    assert list(map(str, omission.examples)) == ["CiliumNetworkPolicy/shop/x"]
    assert run(tmp_path, "list", "--from", "bank", "--to", "bank", "--strict").exit_code == 0
    assert run(tmp_path, "list", "--from", "bank", "--to", "shop", "--strict").exit_code == 6


def test_a_list_of_tools_on_some_ways_names_what_concerns_them() -> None:
    policies = [attached("SecurityPolicy", "prod-gateway"), attached("SecurityPolicy", "other")]
    world = tierwall.load(objects=[*tool.guarded(), *policies])
    assert [omission.count for omission in world.grants().not_considered] == [2]
    assert [omission.count for omission in world.grants(gateway="prod/prod-gateway").not_considered] == [1]


def test_a_list_of_permissions_in_a_namespace_names_what_concerns_it(tmp_path: Path) -> None:
    (tmp_path / "quota.yaml").write_text(yaml.safe_dump(foreign("v1", "ResourceQuota", "small", "shop")))
    for space, code in (("shop", 6), ("bank", 0)):
        arguments = ["can-i", "--list", "--as", "alice", "-n", space, "--strict", "-f", str(tmp_path)]
        assert CliRunner().invoke(root, arguments).exit_code == code


@pytest.mark.parametrize("command", [("list", "-o", "html"), ("check", "-o", "sarif"), ("check", "-o", "github")])
def test_pages_and_reports_say_it_on_standard_error(tmp_path: Path, command: tuple[str, ...]) -> None:
    assert "not considered: 2 CiliumNetworkPolicies" in run(tmp_path, *command).stderr
