"""Test the stack of one field, and effective settings as pages for a review."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.reference import gateway as reference
from tests.worlds.gateway_clusters import cluster, question
from tests.worlds.gateway_settings import gateway, policy
from tierwall.cli.main import root
from tierwall.gateway.question import GatewayQuestion, ask
from tierwall.render import field_stack, settings_review
from tierwall.render.field_stack import FieldStacks
from tierwall.render.formats import View
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

HOSTILE = "<script>alert(1)</script>|x"
MANIFESTS = str(Path(__file__).parents[2] / "examples/gateway/manifests")
PLACE = ["--gateway", "infra/edge", "--listener", "web", "--route", "HTTPRoute/team/chat", "--rule", "llm"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(root, ["effective", *arguments, "-f", MANIFESTS])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("profile", ["docs", "agentgateway"])
@given(seed=st.integers(0, 2**48))
@settings(max_examples=examples(40))
def test_a_stack_has_every_level_once_and_every_loser(profile: str, seed: int) -> None:
    rng = Random(seed)
    objects, asked = cluster(rng), question(rng)
    answer = ask(Snapshot.of(load_objects(objects)), GatewayQuestion.from_dict(asked | {"profile": profile}))
    for field, merged in reference.merge(objects, asked, profile).items():
        document = field_stack.document(FieldStacks(field, [answer]), View())
        (item,) = document["items"]
        assert json.loads(json.dumps(item)) == item
        entries = [entry for entry in item["levels"] if entry.get("reason", "NoEntrySelected") != "NoEntrySelected"]
        shown = [(entry["level"], entry["policy"], entry["reason"]) for entry in entries]
        steps = [step for step in merged.steps if step[2] != "NoEntrySelected"]
        assert sorted(shown) == sorted(steps)
        assert all(entry["counts"] == (entry["reason"] in ("SetsField", "JoinsUnion")) for entry in entries)
        places = reference.levels(objects, asked, field.partition(".")[0], profile)
        assert {level for level, *_ in places} <= {entry["level"] for entry in item["levels"]}


@pytest.mark.parametrize("profile", ["docs", "agentgateway"])
def test_a_heading_says_what_the_question_leaves_open(profile: str) -> None:
    answers = [{"condition": "request.method == 'GET'", "policy": {"status": 404}}]
    objects = [
        gateway(),
        policy("p", "Gateway/edge", traffic={"directResponse": {"conditional": answers}}),
    ]

    def heading(**facts: object) -> str:
        asked = GatewayQuestion.from_dict({"gateway": "shop/edge", "profile": profile, **facts})
        answer = ask(Snapshot.of(load_objects(objects)), asked)
        return next(iter(field_stack.text(FieldStacks("traffic.directResponse", [answer]), View())))

    assert heading().startswith("traffic.directResponse depends on the request at ")
    assert heading(request={"request.method": "GET"}).startswith('traffic.directResponse = {"status":404} at ')
    assert heading(request={"request.method": "PUT"}).startswith("traffic.directResponse is not set at ")


def test_losers_are_struck_out() -> None:
    plain = run("--why", "traffic.timeouts", *PLACE)
    assert '  Gateway           - AgentgatewayPolicy/infra/defaults  {"request":"30s"}  Route is more specific' in plain
    table = run("--why", "traffic.timeouts", *PLACE, "-o", "md")
    assert '~~AgentgatewayPolicy/infra/defaults  {"request":"30s"}~~' in table
    assert '**AgentgatewayPolicy/team/chat  {"request":"120s"}**' in table
    answer = ask(
        Snapshot.of(load_objects(cluster(Random(1)))), GatewayQuestion.from_dict({"gateway": "a/gw", "listener": "web"})
    )
    for detail in answer.detail.fields:
        lines = list(field_stack.text(FieldStacks(detail.field, [answer]), View(colour=True)))
        assert any("\x1b[9m" in line for line in lines) == bool(detail.over)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--why", "traffic.timeout"], "did you mean `traffic.timeouts`?"),
        (
            ["--why", "backend.mcp"],
            "its fields are backend.mcp.authentication, backend.",
        ),
        (["--why", "nothing"], "such as frontend.tcp"),
        (["--why", "traffic.timeouts", "-o", "html"], "leave out --why, or use -o md"),
    ],
)
def test_what_cannot_be_shown_is_a_usage_error(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(root, ["effective", *arguments, *PLACE, "-f", MANIFESTS])
    assert result.exit_code == 2
    assert message in result.output


def test_reviews_have_every_place_and_field() -> None:
    documents = json.loads(run("--all", "-o", "json"))["items"]
    table, page = run("--all", "-o", "md"), run("--all", "-o", "html")
    assert table.count("### ") == page.count("<h2>") == len(documents)
    assert table.count("\n| traffic.timeouts |") == page.count("<code>traffic.timeouts</code>") > 0
    assert "<s>AgentgatewayPolicy/infra/defaults" in page
    assert run(*PLACE, "-o", "md").count("### ") == 1


def test_reviews_escape_what_objects_say() -> None:
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}
    policy = {
        "apiVersion": "agentgateway.dev/v1alpha1",
        "kind": "AgentgatewayPolicy",
        "metadata": {"name": "p", "namespace": "a"},
        "spec": {"targetRefs": [target], "backend": {"ai": {"routes": {HOSTILE: "Messages"}}}},
    }
    gateway = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "gw", "namespace": "a"},
        "spec": {"gatewayClassName": "c", "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}]},
    }
    answer = ask(Snapshot.of(load_objects([gateway, policy])), GatewayQuestion(gateway="a/gw"))
    assert answer.detail.effective
    for lines in (settings_review.markdown([answer], View()), settings_review.page([answer], View())):
        assert "<script" not in "\n".join(lines)
