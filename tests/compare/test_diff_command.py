"""`tierwall diff` shows every plane in every format that has room for it (docs/compare.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tierwall
from tests import ROOT
from tierwall.analyze.diff import PLANES
from tierwall.cli.main import root
from tierwall.planes import plane

OLD, NEW = (str(ROOT / "examples" / "compare" / side) for side in ("old", "new"))


def diff(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["diff", OLD, NEW, *arguments])


def documents(*arguments: str) -> list[Any]:
    listed: list[Any] = json.loads(diff("-o", "json", *arguments).stdout)["differences"]
    return listed


def test_every_difference_has_the_keys_of_its_plane_and_a_question_that_can_be_asked_again() -> None:
    worlds = [tierwall.load(side) for side in (OLD, NEW)]
    listed = documents()
    assert [document["plane"] for document in listed] == list(PLANES)
    assert [document["change"] for document in listed] == ["closes", "opens", "alters", "opens"]
    for document in listed:
        question = plane(document["plane"]).QUESTION.from_dict(document["question"])
        for world, side in zip(worlds, (document["before"], document["after"]), strict=True):
            answer = world.ask(question).to_dict()
            if document["plane"] == "gateway":
                assert answer["effective"][document["field"]] == side
            else:
                assert {key: answer[key] for key in ("verdict", "decidedBy")} == side


@pytest.mark.parametrize("name", PLANES)
def test_a_plane_narrows_the_comparison(name: str) -> None:
    assert [document["plane"] for document in documents("--plane", name)] == [name]
    result = diff("--plane", name)
    assert result.exit_code == 4
    assert len([line for line in result.stdout.splitlines() if line[:2] in ("+ ", "- ", "~ ")]) == 1


def test_planes_can_be_combined_and_those_left_out_do_not_count() -> None:
    assert [document["plane"] for document in documents("--plane", "api", "--plane", "tool")] == ["tool", "api"]
    pods = str(ROOT / "examples" / "shop" / "manifests")
    result = CliRunner().invoke(root, ["diff", pods, f"{ROOT}/tests/golden/worlds/changed", "--plane", "api"])
    assert (result.exit_code, result.stdout) == (0, "nothing changes\n")


@pytest.mark.parametrize("output", ["csv", "dot", "mermaid"])
def test_formats_of_connections_show_connections_alone(output: str) -> None:
    result = diff("-o", output)
    assert result.exit_code == 4
    assert "refund" not in result.stdout
    assert diff("-o", output, "--plane", "network").stdout == result.stdout
    assert diff("-o", output, "--plane", "tool").exit_code == 2


def test_a_profile_is_about_gateway_settings() -> None:
    assert diff("--plane", "gateway", "--profile", "docs").stdout == diff("--plane", "gateway").stdout
    assert documents("--plane", "gateway", "--profile", "agentgateway")[0]["question"]["profile"] == "agentgateway"
    for other in (("--plane", "tool"), ("-o", "csv"), ("--prove",)):
        refused = diff("--profile", "docs", *other)
        assert refused.exit_code == 2
        assert "--profile is about gateway settings" in refused.stderr


def sentences() -> Iterator[str]:
    return (document["sentence"] for document in documents() if document["plane"] != "network")


@pytest.mark.parametrize("output", ["text", "md", "html"])
def test_formats_for_people_tell_every_plane(output: str) -> None:
    result = diff("-o", output)
    assert result.exit_code == 4
    assert all(sentence in result.stdout for sentence in sentences())
    assert "1 connection closes; 1 tool request opens; 1 setting changes; 1 permission opens" in result.stdout


def test_names_cannot_break_out_of_a_page_or_a_table(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "compare" / "old" / "shop.yaml").read_text()
    for side, verbs in (("old", "get"), ("new", "get, list")):
        (tmp_path / side).mkdir()
        changed = text.replace("name: support", 'name: "<script>|{{data}}"').replace("get, list, watch", verbs)
        (tmp_path / side / "shop.yaml").write_text(changed)
    folders = [str(tmp_path / side) for side in ("old", "new")]
    page = CliRunner().invoke(root, ["diff", *folders, "-o", "html"]).stdout
    assert "a member of &lt;script&gt;|{{data}} may now list pods" in page
    table = CliRunner().invoke(root, ["diff", *folders, "-o", "md"]).stdout.splitlines()[-1]
    assert table.startswith("| api | opens | a member of &lt;script>\\|{{data}} may now list pods in shop")


def test_differences_that_agree_in_all_but_one_part_share_a_line(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "compare" / "old" / "shop.yaml").read_text()
    for side, new in (("old", text), ("new", text.replace("resources: [pods]", "resources: [pods, secrets]"))):
        (tmp_path / side).mkdir()
        (tmp_path / side / "shop.yaml").write_text(new)
    lines = CliRunner().invoke(root, ["diff", *(str(tmp_path / side) for side in ("old", "new"))]).stdout.splitlines()
    assert lines[0] == "3 permissions open"
    assert lines[1].startswith("+ a member of support may now get, list, watch secrets in shop (RBAC: allowed by")
    assert len(lines) == 3


def test_what_was_left_out_is_that_of_the_compared_planes(tmp_path: Path) -> None:
    foreign = {"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": {"name": "x"}, "spec": {}}
    (tmp_path / "cilium.json").write_text(json.dumps(foreign))
    both = ["diff", OLD, str(tmp_path)]
    document = json.loads(CliRunner().invoke(root, [*both, "-o", "json", "--plane", "network"]).stdout)
    assert [omission["kind"] for omission in document["notConsidered"]] == ["CiliumNetworkPolicy"]
    assert CliRunner().invoke(root, [*both, "--plane", "network", "--strict"]).exit_code == 6
    document = json.loads(CliRunner().invoke(root, [*both, "-o", "json", "--plane", "api"]).stdout)
    assert document["notConsidered"] == []
    assert CliRunner().invoke(root, [*both, "--plane", "api", "--strict"]).exit_code == 4


POLICY: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "db", "namespace": "shop"},
    "spec": {"podSelector": {"matchLabels": {"app": "db"}}},
}


def test_without_pods_policies_are_compared_for_pods_that_do_not_exist_yet(tmp_path: Path) -> None:
    for allowed in ("api", "web"):
        peer = {"podSelector": {"matchLabels": {"app": allowed}}}
        spec = {**POLICY["spec"], "ingress": [{"from": [peer], "ports": [{"port": 5432}]}]}
        (tmp_path / f"{allowed}.json").write_text(json.dumps({**POLICY, "spec": spec}))
    files = [str(tmp_path / f"{allowed}.json") for allowed in ("api", "web")]
    result = CliRunner().invoke(root, ["diff", *files])
    assert result.exit_code == 4
    assert result.stderr.startswith("note[TW211]: no pods were given, so policies are compared for pods that do not")
    assert [line for line in result.stdout.splitlines() if not line.startswith(" ")] == [
        "1 connection opens, 1 closes",
        "+ any pod with app=web in shop => any pod with app=db in shop : TCP 5432",
        "- any pod with app=api in shop => any pod with app=db in shop : TCP 5432",
    ]
    listed = json.loads(CliRunner().invoke(root, ["diff", *files, "-o", "json"]).stdout)["differences"]
    assert {document["sentence"] for document in listed} == {
        "any pod with app=api in shop can no longer reach any pod with app=db in shop on TCP 5432",
        "any pod with app=web in shop can now reach any pod with app=db in shop on TCP 5432",
    }
    assert CliRunner().invoke(root, ["diff", files[0], files[0]]).stderr == ""
