"""Policies in shadow mode (`tierwall.io/mode: shadow`) judge nothing, and it is said what they would change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings

from tests.randomness import examples
from tests.worlds import network_objects
from tests.worlds.network_clusters import clusters, ends
from tests.worlds.network_objects import network_policy, pod
from tests.worlds.network_snapshots import document, snapshot
from tierwall.analyze.network import network_findings
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


def test_a_policy_in_shadow_mode_denies_nothing_and_says_that_it_would() -> None:
    got = asked(shadowed(admin("strict", "Deny")))
    assert (got["verdict"], got["decidedBy"]) == ("Allow", [{"policy": "Default"}])
    assert got["shadow"] == {
        "sentence": "AdminNetworkPolicy/strict is in shadow mode; with it in force shop/web cannot reach data/db "
        "on TCP port 80: AdminNetworkPolicy/strict egress[0] denies its egress",
        "policies": ["AdminNetworkPolicy/strict"],
        "verdict": "Deny",
        "decidedBy": [{"policy": "AdminNetworkPolicy/strict", "rule": "egress[0]"}, {"policy": "Default"}],
    }


def test_a_network_policy_in_shadow_mode_neither_isolates_nor_opens() -> None:
    got = asked(shadowed(isolating("np")))
    assert (got["verdict"], got["shadow"]["verdict"]) == ("Allow", "Deny")
    got = asked(isolating("np"), shadowed(isolating("opening", {})))
    assert (got["verdict"], got["shadow"]["verdict"]) == ("Deny", "Allow")
    assert got["shadow"]["policies"] == ["NetworkPolicy/data/opening"]


def test_a_pass_in_shadow_mode_is_named_though_another_policy_would_settle_it() -> None:
    got = asked(shadowed(admin("aside", "Pass", 1)), admin("strict", "Deny", 2))
    assert (got["verdict"], got["shadow"]["verdict"]) == ("Deny", "Allow")
    assert got["shadow"]["policies"] == ["AdminNetworkPolicy/aside"]


def test_nothing_is_said_of_a_policy_in_shadow_mode_that_changes_nothing() -> None:
    assert "shadow" not in asked(admin("first", "Deny", 1), shadowed(admin("second", "Allow", 2)))
    assert "shadow" not in asked(admin("strict", "Deny"))


def test_another_mode_is_no_mode() -> None:
    policy = shadowed(admin("strict", "Deny"))
    policy["metadata"]["annotations"]["tierwall.io/mode"] = "Shadow"
    assert asked(policy)["verdict"] == "Deny"


@settings(max_examples=examples(60))
@given(clusters(most_policies=4))
def test_shadow_mode_is_as_if_the_policies_were_not_there_and_would_be_as_if_they_were(objects: list[Object]) -> None:
    policies = [one for one in objects if one["kind"] in POLICIES]
    bare = [one for one in objects if one["kind"] not in POLICIES]
    watched = [*bare, *(one if number % 2 else shadowed(one) for number, one in enumerate(policies))]
    without = [*bare, *policies[1::2]]
    known = ends(objects)
    for question in ({"from": one, "to": other, "port": 80} for one in known[:3] for other in known[-3:]):
        now, gone, whole = (document(snapshot(each), question) for each in (watched, without, objects))
        keys = ("verdict", "decidedBy", "egress", "ingress")
        assert [now[key] for key in keys] == [gone[key] for key in keys]
        then = now.get("shadow", now)
        assert (then["verdict"], then["decidedBy"]) == (whole["verdict"], whole["decidedBy"])


def test_the_list_and_the_comparison_leave_policies_in_shadow_mode_out() -> None:
    bare, watched, strict = (snapshot([*PODS, *more]) for more in ([], [shadowed(isolating("np"))], [isolating("np")]))
    listed = [[str(entry) for entry in connections(one)] for one in (bare, watched, strict)]
    assert listed[0] == listed[1] != listed[2]
    assert not list(compare_connections(bare, watched))
    assert list(compare_connections(watched, strict))


def test_the_checks_name_policies_in_shadow_mode_and_judge_only_the_others() -> None:
    found = list(network_findings(snapshot([*PODS, shadowed(admin("a", "Deny", 1)), admin("b", "Deny", 2)])))
    assert [(one.code, str(one.reference)) for one in found] == [("TW209", "AdminNetworkPolicy/a")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    objects = [*PODS, shadowed(admin("strict", "Deny"))]
    (tmp_path / "all.yaml").write_text("---\n".join(json.dumps(one) + "\n" for one in objects))
    return tmp_path


def test_explain_says_in_its_second_line_what_shadow_mode_hides(folder: Path) -> None:
    arguments = ["explain", "network", "--from", "shop/web", "--to", "data/db", "--port", "80", "-f", str(folder)]
    result = CliRunner().invoke(root, arguments)
    assert result.exit_code == 0
    second = result.stdout.splitlines()[1]
    assert second.startswith("AdminNetworkPolicy/strict is in shadow mode; with it in force shop/web cannot reach")


@pytest.mark.parametrize("command", ["list", "diff"])
def test_the_commands_about_all_connections_note_policies_in_shadow_mode(folder: Path, command: str) -> None:
    result = CliRunner().invoke(root, [command, *[str(folder)] * (2 if command == "diff" else 1)])
    assert result.exit_code == 0
    assert "note[TW209]: AdminNetworkPolicy/strict is in shadow mode" in result.stderr
