"""Questions as people type them, and everything that they may mean."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.explore.conftest import explored_of
from tierwall.explore.ask import ask, parse_query, question_of
from tierwall.explore.asking import EXAMPLES, meanings
from tierwall.explore.named import completions
from tierwall.explore.page import ExploredWorld
from tierwall.explore.permissions import permissions

NETWORK = {"plane": "network", "from": "shop/web", "to": "shop/db", "port": "5432"}
POD = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: %s}\nspec: {containers: [{name: c, image: i}]}\n"


def terms(href: str) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_query(href).items()}


@pytest.mark.parametrize(
    "text",
    [
        "shop/web -> shop/db:5432",
        "shop/web → shop/db:5432",
        "  shop/web=>shop/db : 5432 ".replace(" :", ":"),
        "web -> db:5432",
        "can shop/web reach shop/db on port 5432?",
        "may web connect to db on 5432",
        "shop/web to shop/db 5432",
        "shop/web -> shop/db:5432/TCP",
        "shop/web -> shop/db tcp 5432",
        "shop/web -> shop/db:tcp/5432",
        "shop/web -> shop/db 5432 tcp",
        "shop/web > shop/db:5432",
        "shop/web –> shop/db:5432",
        "db:5432 <- web",
        "WEB -> DB:5432",
        "shop / web -> shop/db:5432",
        "web db 5432",
        "web -> db:postgres",
        "web connects to db at postgres",
        "why can web not reach db on port 5432?",
        "why can't web reach db on 5432",
        "is web allowed to reach db on 5432?",
        "shop/web ⟶ shop/db:5432",
        "web➝db:5432",
        "web ➡️ db:5432",
        "db:5432 ⟵ web",
        "connection from shop/web to shop/db on 5432",
        "'shop/web' -> “shop/db”:5432!",
        "does web talk to the pod db on 5432",
    ],
)
def test_connections_are_understood_in_many_forms(examples: ExploredWorld, text: str) -> None:
    (choice,) = meanings(examples.world, text).choices
    assert terms(choice.href) == NETWORK


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1 -> shop/db:5432", {**NETWORK, "from": "10.0.0.1"}),
        ("outside -> db:53/udp", {**NETWORK, "from": "outside", "port": "53", "protocol": "UDP"}),
        ("web -> [2001:db8::1]:443", {**NETWORK, "to": "2001:db8::1", "port": "443"}),
        (
            "alice create pods in dev",
            {"plane": "api", "user": "alice", "verb": "create", "resource": "pods", "namespace": "dev"},
        ),
        (
            "Can system:serviceaccount:ci:bot delete deployments web in prod?",
            {
                "plane": "api",
                "user": "system:serviceaccount:ci:bot",
                "verb": "delete",
                "resource": "deployments",
                "name": "web",
                "namespace": "prod",
            },
        ),
        ("alice get /healthz", {"plane": "api", "user": "alice", "verb": "get", "path": "/healthz"}),
        (
            "shopper refund",
            {
                "plane": "tool",
                "gateway": "prod/prod-gateway",
                "listener": "agents",
                "backend": "XBackend/prod/payment-service",
                "caller": "agents/shopper",
                "method": "tools/call",
                "tool": "refund",
            },
        ),
        ("settings infra/edge", {"plane": "gateway", "gateway": "infra/edge"}),
        ("settings Gateway/infra/edge#web", {"plane": "gateway", "gateway": "infra/edge", "listener": "web"}),
    ],
)
def test_every_plane_is_asked_in_its_own_words(examples: ExploredWorld, text: str, expected: Mapping[str, str]) -> None:
    (choice,) = meanings(examples.world, text).choices
    assert terms(choice.href) == expected


def test_whoever_is_meant_by_who_is_a_choice(examples: ExploredWorld) -> None:
    for text, first, key in (
        ("who can create pods in dev?", "/permissions", "user"),
        ("who may call refund", "/tools", "caller"),
    ):
        everybody, *others = meanings(examples.world, text).choices
        assert everybody.href == first
        assert others
        assert "who" not in [terms(choice.href)[key] for choice in others]
    (choice,) = meanings(examples.world, "is alice allowed to create pods in dev?").choices
    assert terms(choice.href)["user"] == "alice"


def test_users_and_groups_of_expressions_are_known_by_one_word(tmp_path: Path) -> None:
    policy = """
apiVersion: tierwall.io/v1alpha1
kind: ClusterAuthorizationPolicy
metadata: {name: own}
spec:
  effect: Allow
  expression: >-
    request.userInfo.username in ["carol", "system:serviceaccount:ci:bot"] ||
    "builders" in request.userInfo.groups
"""
    (tmp_path / "policy.yaml").write_text(policy)
    explored = explored_of(tmp_path)
    addresses = {
        word: [choice.href for choice in meanings(explored.world, word).choices]
        for word in ("carol", "bot", "ci/bot", "system:serviceaccount:ci:bot", "builders", "what can bot do in ci")
    }
    bot = "/permissions?user=system%3Aserviceaccount%3Aci%3Abot"
    assert addresses == {
        "carol": ["/permissions?user=carol"],
        "bot": [bot],
        "ci/bot": [bot],
        "system:serviceaccount:ci:bot": [bot],
        "builders": ["/permissions?group=builders"],
        "what can bot do in ci": [f"{bot}&namespace=ci"],
    }
    assert completions(explored.world.snapshot, "bo") == ["system:serviceaccount:ci:bot"]
    assert completions(explored.world.snapshot, "what can bui") == ["what can builders"]
    page = permissions(explored, {})
    assert page.document["users"] == ["carol", "system:serviceaccount:ci:bot"]
    assert "members of builders" in page.body


def test_the_gateway_narrows_the_ways_to_a_tool(examples: ExploredWorld) -> None:
    assert len(meanings(examples.world, "agents/shopper refund at prod/prod-gateway").choices) == 1
    assert meanings(examples.world, "agents/shopper refund at infra/nowhere").problems


def test_several_meanings_are_a_choice(tmp_path: Path) -> None:
    pods = "".join(POD % (name, namespace) for name in ("web", "db") for namespace in ("blue", "green"))
    (tmp_path / "pods.yaml").write_text(pods)
    explored = explored_of(tmp_path)
    choices = meanings(explored.world, "web -> db:80").choices
    asked = [(terms(choice.href)["from"], terms(choice.href)["to"]) for choice in choices]
    assert asked == [(f"{here}/web", f"{there}/db") for here in ("blue", "green") for there in ("blue", "green")]
    page = ask(explored, {"q": ("web -> db:80",)})
    assert [choice["words"] for choice in page.document["choices"]] == [choice.words for choice in choices]
    assert all(choice.words in page.body for choice in choices)


def test_a_missing_port_is_a_choice_among_those_that_policies_name(examples: ExploredWorld) -> None:
    choices = meanings(examples.world, "web -> db").choices
    assert [terms(choice.href)["port"] for choice in choices] == ["5432", "9090"]


def test_one_word_leads_to_what_has_that_name(examples: ExploredWorld) -> None:
    addresses = [choice.href for choice in meanings(examples.world, "shop").choices]
    assert addresses == ["/network?focus=shop", "/policy/Namespace/shop"]
    addresses = [choice.href for choice in meanings(examples.world, "db-from-api").choices]
    assert addresses == ["/policy/NetworkPolicy.networking.k8s.io/shop/db-from-api"]


@pytest.mark.parametrize(
    ("text", "href"),
    [
        ("who can reach db?", "/network?to=shop%2Fdb"),
        ("who reaches shop/db on 5432", "/network?to=shop%2Fdb&port=5432%2FTCP"),
        ("what can web reach", "/network?from=shop%2Fweb"),
        ("monitoring -> shop/web:80", "/network?from=monitoring&to=shop%2Fweb&port=80%2FTCP"),
        ("shop/* -> outside", "/network?from=shop&to=outside"),
        ("what may alice do in dev?", "/permissions?user=alice&namespace=dev"),
        ("what may shopper call", "/tools?caller=agents%2Fshopper"),
        ("settings", "/settings"),
    ],
)
def test_questions_about_many_lead_to_a_list(examples: ExploredWorld, text: str, href: str) -> None:
    (choice,) = meanings(examples.world, text).choices
    assert choice.href == href
    assert ask(examples, {"q": (text,)}).moved_to == href


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("deploy/web -> sts/db:5432", "Deployment/shop/web"),
        ("deployments/shop/web -> db:5432", "Deployment/shop/web"),
    ],
)
def test_kinds_may_be_shortened(examples: ExploredWorld, text: str, named: str) -> None:
    (choice,) = meanings(examples.world, text).choices
    assert terms(choice.href)["from"] == named


def test_what_is_misspelled_is_a_choice_or_says_what_is_near(examples: ExploredWorld) -> None:
    tools = [terms(choice.href)["tool"] for choice in meanings(examples.world, "shopper refnud").choices]
    assert tools[0] == "refund"
    assert "refnud" in tools
    callers = [terms(choice.href)["caller"] for choice in meanings(examples.world, "shoper refund").choices]
    assert callers == ["agents/shopper", "shoper"]
    for text, near in (
        ("wbe -> shop/db:5432", "`web`"),
        ("who can reach dbb", "`db`"),
        ("alice craete pods in dev", "`create`"),
        ("shopper refund at prod/prod-gatewy", "`prod/prod-gateway`"),
        ("shopp", "`shop`"),
    ):
        (problem,) = meanings(examples.world, text).problems
        assert near in problem.hint, text


def test_two_words_that_nobody_has_are_no_question(examples: ExploredWorld) -> None:
    for text in ("setings chat", "namespace shop", "web -> db:nosuchport"):
        assert meanings(examples.world, text).problems, text


def test_a_name_that_is_a_namespace_may_be_either(examples: ExploredWorld) -> None:
    choices = [terms(choice.href) for choice in meanings(examples.world, "alice get pods shop").choices]
    assert [(each.get("name"), each.get("namespace")) for each in choices] == [("shop", None), (None, "shop")]


def test_a_question_is_never_cut(examples: ExploredWorld) -> None:
    (problem,) = meanings(examples.world, "web -> db:5432" + " " * 1000).problems
    assert "1,000 characters" in problem.message


@pytest.mark.parametrize("text", ["", "   ", "?", "nonsense", "alice get", "a b c d e", "-> x", "settings nowhere"])
def test_what_cannot_be_read_says_how_to_ask(examples: ExploredWorld, text: str) -> None:
    (problem,) = meanings(examples.world, text).problems
    assert problem.hint
    page = ask(examples, {"q": (text,)})
    assert page.status == 400
    assert page.document["diagnostics"][0]["hint"] == problem.hint


def test_the_examples_in_hints_can_be_typed() -> None:
    assert EXAMPLES.count("`") == 8


@given(st.text(max_size=60))
def test_no_text_fails_to_be_read(examples: ExploredWorld, text: str) -> None:
    meant = meanings(examples.world, text)
    assert bool(meant.choices) != bool(meant.problems)
    for choice in meant.choices:
        if choice.plane:
            question_of(parse_query(choice.href))
    completions(examples.world.snapshot, text)


def test_completion_is_from_what_is_there(examples: ExploredWorld) -> None:
    snapshot = examples.world.snapshot
    assert "shop/web" in completions(snapshot, "shop/we")
    assert "shop/web -> shop/db" in completions(snapshot, "shop/web -> db")
    assert "shopper refund" in completions(snapshot, "shopper ref")
    assert completions(snapshot, "") == []
