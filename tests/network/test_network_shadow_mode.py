"""Policies in shadow mode (`tierwall.io/mode: shadow`) decide nothing; answers say what they would change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings

from tests.randomness import examples
from tests.worlds import network_objects
from tests.worlds.network_clusters import clusters, endpoints
from tests.worlds.network_objects import network_policy, pod
from tests.worlds.network_snapshots import document, snapshot
from tierwall.analyze.network_checks import network_findings
from tierwall.cli.main import root
from tierwall.network.reach.compare import compare_connections
from tierwall.network.reach.connections import connections

Object = dict[str, Any]
POLICIES = ("AdminNetworkPolicy", "BaselineAdminNetworkPolicy", "ClusterNetworkPolicy", "NetworkPolicy")
QUESTION = {"from": "shop/web", "to": "data/db", "port": 80}


def admin(name: str, action: str, priority: int = 5) -> Object:
    return network_objects.admin(name, priority=priority, egress=[{"action": action, "to": [{"namespaces": {}}]}])


def isolating(name: str, *ingress: Object) -> Object:
    return network_policy(name, *ingress, namespace="data", policyTypes=["Ingress"])


def shadowed(policy: Object) -> Object:
    return {**policy, "metadata": {**policy["metadata"], "annotations": {"tierwall.io/mode": "shadow"}}}


PODS = [pod("shop", "web"), pod("data", "db")]


def asked(*policies: Object) -> Object:
    return document(snapshot([*PODS, *policies]), QUESTION)


def test_a_policy_in_shadow_mode_denies_nothing_and_the_answer_says_that_it_would() -> None:
    got = asked(shadowed(admin("strict", "Deny")))
    assert (got["verdict"], got["decidedBy"]) == ("Allow", [{"policy": "Default"}])
    assert got["shadow"] == {
        "sentence": "AdminNetworkPolicy/strict is in shadow mode; with it in force shop/web cannot reach data/db "
        "on TCP port 80: AdminNetworkPolicy/strict egress[0] denies its egress",
        "policies": ["AdminNetworkPolicy/strict"],
        "verdict": "Deny",
        "decidedBy": [{"policy": "AdminNetworkPolicy/strict", "rule": "egress[0]"}, {"policy": "Default"}],
    }


def test_a_network_policy_in_shadow_mode_neither_isolates_nor_allows() -> None:
    got = asked(shadowed(isolating("np")))
    assert (got["verdict"], got["shadow"]["verdict"]) == ("Allow", "Deny")
    got = asked(isolating("np"), shadowed(isolating("opening", {})))
    assert (got["verdict"], got["shadow"]["verdict"]) == ("Deny", "Allow")
    assert got["shadow"]["policies"] == ["NetworkPolicy/data/opening"]


def test_a_pass_in_shadow_mode_is_named_even_if_another_policy_would_decide() -> None:
    got = asked(shadowed(admin("aside", "Pass", 1)), admin("strict", "Deny", 2))
    assert (got["verdict"], got["shadow"]["verdict"]) == ("Deny", "Allow")
    assert got["shadow"]["policies"] == ["AdminNetworkPolicy/aside"]


def test_a_policy_in_shadow_mode_that_changes_nothing_is_not_mentioned() -> None:
    assert "shadow" not in asked(admin("first", "Deny", 1), shadowed(admin("second", "Allow", 2)))
    assert "shadow" not in asked(admin("strict", "Deny"))


def test_an_unknown_mode_is_ignored() -> None:
    policy = shadowed(admin("strict", "Deny"))
    policy["metadata"]["annotations"]["tierwall.io/mode"] = "Shadow"
    assert asked(policy)["verdict"] == "Deny"


@settings(max_examples=examples(60))
@given(clusters(most_policies=4))
def test_answers_ignore_shadow_policies_and_the_shadow_part_includes_them(objects: list[Object]) -> None:
    policies = [policy for policy in objects if policy["kind"] in POLICIES]
    bare = [resource for resource in objects if resource["kind"] not in POLICIES]
    watched = [*bare, *(policy if number % 2 else shadowed(policy) for number, policy in enumerate(policies))]
    without = [*bare, *policies[1::2]]
    known = endpoints(objects)
    for question in ({"from": source, "to": other, "port": 80} for source in known[:3] for other in known[-3:]):
        now, gone, whole = (document(snapshot(each), question) for each in (watched, without, objects))
        keys = ("verdict", "decidedBy", "egress", "ingress")
        assert [now[key] for key in keys] == [gone[key] for key in keys]
        then = now.get("shadow", now)
        assert (then["verdict"], then["decidedBy"]) == (whole["verdict"], whole["decidedBy"])


def test_the_list_and_the_comparison_ignore_policies_in_shadow_mode() -> None:
    bare, watched, strict = (snapshot([*PODS, *more]) for more in ([], [shadowed(isolating("np"))], [isolating("np")]))
    listed = [[str(entry) for entry in connections(world)] for world in (bare, watched, strict)]
    assert listed[0] == listed[1] != listed[2]
    assert not list(compare_connections(bare, watched))
    assert list(compare_connections(watched, strict))


def test_the_checks_name_policies_in_shadow_mode_and_examine_only_the_others() -> None:
    findings = list(network_findings(snapshot([*PODS, shadowed(admin("a", "Deny", 1)), admin("b", "Deny", 2)])))
    assert [(finding.code, str(finding.reference)) for finding in findings] == [("TW209", "AdminNetworkPolicy/a")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    objects = [*PODS, shadowed(admin("strict", "Deny"))]
    (tmp_path / "all.yaml").write_text("---\n".join(json.dumps(resource) + "\n" for resource in objects))
    return tmp_path


def test_the_second_line_of_explain_says_what_shadow_policies_would_change(folder: Path) -> None:
    arguments = ["explain", "network", "--from", "shop/web", "--to", "data/db", "--port", "80", "-f", str(folder)]
    result = CliRunner().invoke(root, arguments)
    assert result.exit_code == 0
    second = result.stdout.splitlines()[1]
    assert second.startswith("AdminNetworkPolicy/strict is in shadow mode; with it in force shop/web cannot reach")


@pytest.mark.parametrize("command", ["list", "diff"])
def test_the_commands_about_all_connections_mention_policies_in_shadow_mode(folder: Path, command: str) -> None:
    result = CliRunner().invoke(root, [command, *[str(folder)] * (2 if command == "diff" else 1)])
    assert result.exit_code == 0
    assert "note[TW209]: AdminNetworkPolicy/strict is in shadow mode" in result.stderr
