"""A comparison that leaves something out says so, in every form (docs/compare.md#what-is-compared)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tierwall
from tierwall.analyze import diff_api, future_pods
from tierwall.analyze.diff import PlaneComparison, compare
from tierwall.cli.main import root
from tierwall.core.answer import Omission
from tierwall.render.differences import summary


def role_objects(resources: int, verbs: int) -> list[dict[str, Any]]:
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    rule = {
        "apiGroups": [""],
        "resources": [f"r{number}" for number in range(resources)],
        "verbs": [f"v{number}" for number in range(verbs)],
    }
    return [
        {**rbac, "kind": "ClusterRole", "metadata": {"name": "wide"}, "rules": [rule]},
        {
            **rbac,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "wide"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "wide"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}],
        },
    ]


@pytest.mark.parametrize(("verbs", "is_limited"), [(64, False), (65, True)])
def test_a_rule_with_more_requests_than_are_asked_is_named(verbs: int, is_limited: bool) -> None:
    compared = tierwall.diff(
        tierwall.loads(""), tierwall.loads("", objects=role_objects(diff_api.MAX_REQUESTS // 64, verbs)), planes=["api"]
    )
    assert len(list(compared)) == diff_api.MAX_REQUESTS
    assert [(omission.reason, omission.kind, omission.count) for omission in compared.not_considered] == (
        [("limit", "ClusterRoleBinding", 1)] if is_limited else []
    )


def test_a_policy_with_more_requests_than_are_asked_is_named() -> None:
    names = ", ".join(f"'n{number}'" for number in range(900))
    policy = {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "ClusterAuthorizationPolicy",
        "metadata": {"name": "names"},
        "spec": {"effect": "Allow", "expression": f"request.name in [{names}]"},
    }
    compared = tierwall.diff(tierwall.loads(""), tierwall.loads("", objects=[policy]), planes=["api"])
    assert list(compared)
    (omission,) = compared.not_considered
    assert str(omission.examples[0]) == "ClusterAuthorizationPolicy/names"


def policies(count: int) -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": f"p{number}", "namespace": "shop"},
            "spec": {
                "podSelector": {"matchLabels": {f"key{number}": "yes"}},
                "ingress": [{"ports": [{"port": 1000 + number}]}],
            },
        }
        for number in range(count)
    ]


@pytest.mark.parametrize("output", ["text", "json", "md", "csv"])
@pytest.mark.parametrize("strict", [False, True])
def test_future_pods_that_are_not_compared_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, strict: bool
) -> None:
    monkeypatch.setattr(future_pods, "MAX_SORTS", 10)
    (tmp_path / "old.json").write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": policies(5)}))
    (tmp_path / "new.json").write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": policies(6)}))
    arguments = ["diff", str(tmp_path / "old.json"), str(tmp_path / "new.json"), "-o", output]
    result = CliRunner().invoke(root, [*arguments, *(["--strict"] if strict else [])])
    assert result.exit_code == (6 if strict else 4)
    if output == "json":
        assert [entry["reason"] for entry in json.loads(result.stdout)["notConsidered"]] == ["limit"]
    else:
        written = result.stderr if output == "csv" else result.stdout
        assert "not considered: 1 sort of future pods, or more (policies tell more than 10 sorts in a" in written


def test_namespaces_of_changed_policies_are_compared_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(future_pods, "MAX_IN_ALL", 12)

    def world(last: int) -> tierwall.World:
        objects = policies(1)
        for number in range(40):
            (policy,) = policies(1)
            policy["metadata"]["namespace"] = f"n{number}"
            policy["spec"]["ingress"][0]["ports"][0]["port"] = last if number == 39 else 80
            objects.append(policy)
        return tierwall.loads("", objects=objects)

    compared = tierwall.diff(world(80), world(81), planes=["network"])
    assert {(difference.change, difference.covers["ports"]) for difference in compared} == {
        ("opens", "TCP 81"),
        ("closes", "TCP 80"),
    }
    assert [omission.reason for omission in compared.not_considered] == ["limit"]


def test_an_incomplete_comparison_does_not_say_that_nothing_changes() -> None:
    omission = Omission(reason="limit", count=1, effect="")
    assert summary(PlaneComparison()) == "nothing changes"
    assert summary(PlaneComparison(not_considered=(omission,))) == "nothing changes in what was compared"


def network_policy(namespace: str, *rules: Any) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": list(rules)},
    }


def from_namespace(name: str, *ports: int) -> dict[str, Any]:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
    return {"from": [peer], "ports": [{"port": port} for port in ports]}


@pytest.mark.parametrize(
    ("before", "after", "is_named"),
    [
        (network_policy("other"), network_policy("other", {}), True),
        (network_policy("shop"), network_policy("shop", from_namespace("monitoring", 80)), True),
        (
            network_policy("shop", from_namespace("monitoring", 80, 81)),
            network_policy("shop", from_namespace("monitoring", 81), from_namespace("monitoring", 80)),
            False,
        ),
    ],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_a_policy_that_changes_only_for_pods_that_were_not_given_is_named(
    before: dict[str, Any], after: dict[str, Any], is_named: bool, grouped: bool
) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    old, new = (tierwall.loads("", objects=[pod, policy]).snapshot for policy in (before, after))
    compared = compare(old, new, ["network"], grouped)
    assert not compared
    named = [f"NetworkPolicy/{before['metadata']['namespace']}/p"] if is_named else []
    assert [str(omission.examples[0]) for omission in compared.not_considered] == named
