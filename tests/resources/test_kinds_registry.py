"""Kinds are found by apiVersion and kind. Unknown kinds are ignored; near misses of known ones are not."""

from pathlib import Path

import pytest

from tierwall.resources.admission import admit
from tierwall.resources.kinds import registry
from tierwall.resources.kinds.misspelling import misspelled_kind
from tierwall.resources.kinds.registry import all_kinds, find_kind


def test_every_kind_is_found_by_its_own_name() -> None:
    for kind in all_kinds():
        assert find_kind(kind.api_version, kind.kind) is kind


def test_one_version_of_each_custom_resource_is_stored() -> None:
    stored: dict[tuple[str, str], int] = {}
    for kind in all_kinds():
        if kind.is_crd:
            stored[kind.group, kind.kind] = stored.get((kind.group, kind.kind), 0) + kind.storage
    assert set(stored.values()) == {1}


def test_policy_kinds_are_strict_and_read_kinds_are_not() -> None:
    lenient = {kind.kind for kind in all_kinds() if not kind.strict}
    workloads = {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job", "CronJob"}
    assert {"Namespace", "Node", "Pod", "Service"} | workloads <= lenient
    for name in ("NetworkPolicy", "AdminNetworkPolicy", "AgentgatewayPolicy", "Role", "PolicyTest"):
        assert name not in lenient


@pytest.mark.parametrize("kind", ["ConfigMap", "Secret", "Ingress", "Widget"])
def test_an_unknown_kind_is_ignored(kind: str) -> None:
    assert admit({"apiVersion": "v1", "kind": kind, "whatever": 1}) == []


NO_PART = "; until then the policy takes no part"


@pytest.mark.parametrize(
    ("api_version", "kind", "hint"),
    [
        ("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolcy", "did you mean `AdminNetworkPolicy`?"),
        ("networking.k8s.io/v1", "networkPolicy", "did you mean `NetworkPolicy`?"),
        ("networking.k8s.io/v1", "NetworkPolcy", "did you mean `NetworkPolicy`?"),
        ("networking.k8s.io/v1", "NetworkPolicies", "did you mean `NetworkPolicy`?"),
        ("networking.k8s.io/v1", "NetowrkPolicy", "did you mean `NetworkPolicy`?"),
        ("agentic.networking.x-k8s.io/v1alpha1", "XAccesPolicy", "did you mean `XAccessPolicy`?"),
        ("agentgateway.dev/v1alpha1", "AgentgatewayPolcy", "did you mean `AgentgatewayPolicy`?"),
        ("gateway.networking.k8s.io/v1", "Gatway", "did you mean `Gateway`?"),
        ("gateway.networking.k8s.io/v1", "HttpRoute", "did you mean `HTTPRoute`?"),
        ("v1", "Namesapce", "did you mean `Namespace`?"),
        ("networking.k8s.io/v1", "AdminNetworkPolicy", "use apiVersion `policy.networking.k8s.io/v1alpha1`"),
        ("netwroking.k8s.io/v1", "NetworkPolicy", "use apiVersion `networking.k8s.io/v1`"),
        ("apps.k8s.io/v1", "Deployment", "use apiVersion `apps/v1`"),
        ("networking.k8s.io", "NetworkPolicy", "use apiVersion `networking.k8s.io/v1`"),
        ("v1", "NetworkPolicy", "use apiVersion `networking.k8s.io/v1`"),
        ("apps/v1", "CronJob", "use apiVersion `batch/v1`"),
        ("extensions/v1beta1", "StatefulSet", "use apiVersion `apps/v1`"),
        (
            "networking.k8s.io/v1",
            "AdminNetworkPolcy",
            "use `AdminNetworkPolicy` and apiVersion `policy.networking.k8s.io/v1alpha1`",
        ),
        ("networking.k8s.io/v2", "NetworkPolicy", f"use apiVersion `networking.k8s.io/v1`{NO_PART}"),
        (
            "extensions/v1beta1",
            "NetworkPolicy",
            f"use apiVersion `networking.k8s.io/v1`: Kubernetes 1.16 removed `extensions/v1beta1`{NO_PART}",
        ),
        ("v2", "Pod", "use apiVersion `v1`; the object is read all the same"),
    ],
)
def test_a_near_miss_of_a_known_kind_is_an_error_with_a_hint(api_version: str, kind: str, hint: str) -> None:
    (problem,) = admit({"apiVersion": api_version, "kind": kind})
    assert problem.message == f'no matches for kind "{kind}" in version "{api_version}"'
    assert problem.hint == hint


@pytest.mark.parametrize(
    ("group", "kind"),
    [
        ("networking.k8s.io", "Ingress"),
        ("example.com", "NetworkPolicy"),
        ("example.com", "Gatway"),
        # Neighbours, not mistakes.
        ("gateway.networking.k8s.io", "TCPRoute"),
        ("gateway.networking.k8s.io", "TLSRoute"),
        ("policy.linkerd.io", "Server"),
        ("", "Endpoints"),
        ("networking.istio.io", "Gateway"),
        ("crd.projectcalico.org", "NetworkPolicy"),
        ("extensions", "Ingress"),
        # Too short to tell.
        ("gateway.networking.k8s.io", "Gatwy"),
        ("batch.k8s.io", "Job"),
        ("cluster.x-k8s.io", "MachineDeployment"),
    ],
)
def test_kinds_that_others_have_are_not_misspelled(group: str, kind: str) -> None:
    assert misspelled_kind(group, kind) is None


def test_a_misspelling_is_compared_in_bounded_time() -> None:
    assert misspelled_kind("networking.k8s.io", "N" * 1_000_000) is None


def test_the_problem_of_a_document_without_a_type_says_what_is_missing() -> None:
    assert [problem.message for problem in admit({})] == ["apiVersion: Required value", "kind: Required value"]
    assert admit([])[0].expected == "object"
    assert admit({"apiVersion": 1, "kind": "Pod"})[0].path == ("apiVersion",)


def test_every_file_is_the_definition_of_the_kind_that_it_is_named_after() -> None:
    data = Path(registry.__file__).parent / "data"
    listed = {f"{kind.group or 'core'}/{kind.kind}.json" for kind in all_kinds()}
    assert {str(file.relative_to(data)) for file in data.glob("*/*")} == listed
    for kind in all_kinds():
        names = registry.built_in_definition(kind.group, kind.kind)["metadata"]["name"], f"{kind.plural}.{kind.group}"
        assert names[0] == names[1].rstrip(".")
