"""Questions as people type them, and everything that they may mean."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.explore.conftest import explored_of
from tierwall.explore.ask import ask, parse_query, question_of
from tierwall.explore.asked.meaning import EXAMPLES
from tierwall.explore.asking import meanings
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
    "text",
    [
        "why is web denied to db on 5432?",
        "is web blocked from reaching db on 5432",
        "what happens if web connects to db on 5432",
        "please show me web -> db:5432",
        "is db reachable from web on 5432?",
        "why isn't db accessible from web on 5432",
        "can db be reached by web on port 5432",
        "db:5432 is not reachable from web",
        "does web have access to db on 5432",
        "web >> db:5432",
        "web ~> db:5432",
        "web |> db:5432",
        "web ⇢ db:5432",
        "web ⤳ db:5432",
        "web ⮕ db:5432",
        "web ↛ db:5432",
        "web 👉 db:5432",
        "web → db：5432",
        "web -> db.shop:5432",
        "web -> db.shop.svc.cluster.local.:5432",
        "app=web -> db:5432",
        "web -> postgres://db:5432/orders",
        "May shop/web open a connection to shop/db on TCP port 5432?",
    ],
)
def test_connections_are_understood_in_more_words(examples: ExploredWorld, text: str) -> None:
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
    for text in ("setings chat", "namespace shopp", "web -> db:nosuchport"):
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
    assert "shop/web->shop/db" in completions(snapshot, "shop/web->shop/d")
    assert "web,shop/api" in completions(snapshot, "web,shop/ap")
    assert completions(snapshot, "") == completions(snapshot, "web ->") == completions(snapshot, "web ") == []


# A Deployment, a pod of its own, and a Service of one name, whose port 80 leads to `http-web` (8080).
NAMED = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: my-app-v2, namespace: team-a}
spec:
  selector: {matchLabels: {app: my-app-v2}}
  template:
    metadata: {labels: {app: my-app-v2}}
    spec: {containers: [{name: c, image: i, ports: [{name: http-web, containerPort: 8080}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: my-app-v2, namespace: team-a}
spec: {selector: {app: my-app-v2}, ports: [{name: http, port: 80, targetPort: http-web}]}
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere, namespace: team-a}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: six, namespace: team-a}
spec: {containers: [{name: c, image: i}]}
status: {podIPs: [{ip: "fd00::7"}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: v2-in, namespace: team-a}
spec: {podSelector: {matchLabels: {app: my-app-v2}}, ingress: []}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: rb, namespace: team-a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects:
- {kind: User, name: "jane@example.com", apiGroup: rbac.authorization.k8s.io}
- {kind: Group, name: "oidc:dev team", apiGroup: rbac.authorization.k8s.io}
- {kind: ServiceAccount, name: deployer, namespace: ci}
"""
SERVICE, DEPLOYMENT = "Service/team-a/my-app-v2", "team-a/my-app-v2"
BOT = "system:serviceaccount:ci:deployer"


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> ExploredWorld:
    folder = tmp_path_factory.mktemp("named")
    (folder / "all.yaml").write_text(NAMED)
    return explored_of(folder)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("six -> my-app-v2:http-web", [(DEPLOYMENT, "8080")]),
        ("six -> my-app-v2:8080", [(DEPLOYMENT, "8080")]),
        # Of two things with one name, each may be meant.
        ("six -> my-app-v2:80", [(DEPLOYMENT, "80"), (SERVICE, "80")]),
        ("six -> my-app-v2", [(DEPLOYMENT, "8080"), (SERVICE, "80")]),
        ("six -> my-app-v2:http", [(SERVICE, "80")]),
        ("six -> my-app-v2.team-a.svc:80", [(SERVICE, "80")]),
        ("six -> http://my-app-v2.team-a.svc.cluster.local/path", [(SERVICE, "80")]),
        ("my-app-v2 -> [fd00::7]:443", [("fd00::7", "443")]),
        ("my-app-v2 -> fd00::7 443", [("fd00::7", "443")]),
        ("my-app-v2 -> https://[fd00::7]/", [("fd00::7", "443")]),
    ],
)
def test_ports_and_services_lead_to_what_is_meant(
    named: ExploredWorld, text: str, expected: list[tuple[str, str]]
) -> None:
    asked = [terms(choice.href) for choice in meanings(named.world, text).choices]
    assert [(each["to"], each["port"]) for each in asked] == expected


@pytest.mark.parametrize(
    ("text", "hrefs"),
    [
        ("who can reach my-app-v2.team-a:80", ["/network?to=team-a%2Fmy-app-v2&port=8080%2FTCP"]),
        ("my-app-v2:http-web", ["/network?to=team-a%2Fmy-app-v2&port=8080%2FTCP"]),
        ("what can reach six", ["/network?to=team-a%2Fsix"]),
        ("can anybody reach six?", ["/network?to=team-a%2Fsix"]),
        ("which pods reach six on 80", ["/network?to=team-a%2Fsix&port=80%2FTCP"]),
        ("* -> six:80", ["/network?to=team-a%2Fsix&port=80%2FTCP"]),
        ("six -> anything", ["/network?from=team-a%2Fsix"]),
        ("where can six go", ["/network?from=team-a%2Fsix"]),
        ("is six exposed", ["/network?to=team-a%2Fsix"]),
        ("who is exposed to the internet", ["/network?from=outside"]),
        ("unprotected pods", ["/network"]),
        ("team-a/*", ["/network?focus=team-a"]),
        ("pods in team-a -> outside:443", ["/network?from=team-a&to=outside&port=443%2FTCP"]),
        (
            "six -> my-app-v2:80,8000-8080",
            ["/network?from=team-a%2Fsix&to=team-a%2Fmy-app-v2&port=80%2FTCP&port=8000-8080%2FTCP"],
        ),
        (
            "six, my-app-v2 -> outside:443",
            ["/network?from=team-a%2Fsix&from=team-a%2Fmy-app-v2&to=outside&port=443%2FTCP"],
        ),
        (
            "Who of team-a/six, team-a/my-app-v2 reaches outside on port 443",
            ["/network?from=team-a%2Fsix&from=team-a%2Fmy-app-v2&to=outside&port=443%2FTCP"],
        ),
        ("permissions of jane@example.com", ["/permissions?user=jane%40example.com"]),
        ("what is jane@example.com allowed to do in team-a", ["/permissions?user=jane%40example.com&namespace=team-a"]),
        ("what can group oidc:devs do", ["/permissions?group=oidc%3Adevs"]),
        ("netpol/v2-in", ["/policy/NetworkPolicy.networking.k8s.io/team-a/v2-in"]),
        ("show networkpolicy v2-in", ["/policy/NetworkPolicy.networking.k8s.io/team-a/v2-in"]),
        ("V2-IN", ["/policy/NetworkPolicy.networking.k8s.io/team-a/v2-in"]),
        ("edit v2-in", ["/change?object=NetworkPolicy%2Fteam-a%2Fv2-in"]),
        # Nobody's permissions are asked about, and the editor does not delete.
        (
            "what if I delete v2-in",
            ["/policy/NetworkPolicy.networking.k8s.io/team-a/v2-in", "/change?object=NetworkPolicy%2Fteam-a%2Fv2-in"],
        ),
    ],
)
def test_other_questions_lead_to_a_page(named: ExploredWorld, text: str, hrefs: list[str]) -> None:
    assert [choice.href for choice in meanings(named.world, text).choices] == hrefs


WEB_AND_API = "/network?from=shop%2Fweb&from=shop%2Fapi&to=shop%2Fdb&port=5432%2FTCP"
NETPOL = "/policy/NetworkPolicy.networking.k8s.io/shop/db-from-api"


@pytest.mark.parametrize(
    ("text", "hrefs"),
    [
        # A port by name counts among several ends, too.
        ("web, api -> db:postgres", [WEB_AND_API]),
        ("web and api to db on postgres", [WEB_AND_API]),
        ("web, api -> db:5432", [WEB_AND_API]),
        ("what is exposed", ["/network"]),
        ("what is reachable", ["/network"]),
        ("who listens on 5432", ["/network?port=5432%2FTCP"]),
        ("what uses port 53/udp", ["/network?port=53%2FUDP"]),
        ("5432", ["/network?port=5432%2FTCP"]),
        (":5432", ["/network?port=5432%2FTCP"]),
        ("udp/53", ["/network?port=53%2FUDP"]),
        ("ingress of db", ["/network?to=shop%2Fdb"]),
        ("incoming traffic to db:5432", ["/network?to=shop%2Fdb&port=5432%2FTCP"]),
        ("egress from web", ["/network?from=shop%2Fweb"]),
        ("nc -zv db 5432", ["/network?to=shop%2Fdb&port=5432%2FTCP"]),
        ("pods", ["/network"]),
        ("all pods in shop", ["/network?focus=shop"]),
        ("10.0.0.1", ["/network?from=10.0.0.1"]),
        ("netpol", [NETPOL]),
        ("show all network policies", [NETPOL]),
        ("problems", ["/findings"]),
        ("findings in shop", ["/findings?namespace=shop", "/findings?policy=Namespace%2Fshop"]),
        ("warnings for db-from-api", ["/findings?policy=NetworkPolicy%2Fshop%2Fdb-from-api"]),
        ("can alice do everything", ["/permissions?user=alice"]),
        ("what is alice not allowed to do", ["/permissions?user=alice"]),
        ("what overrides the policy db-from-api", [NETPOL]),
        ("errors", ["/findings?severity=error"]),
        ("tw203", ["/findings?code=TW203"]),
    ],
)
def test_everyday_words_lead_to_a_page(examples: ExploredWorld, text: str, hrefs: list[str]) -> None:
    assert [choice.href for choice in meanings(examples.world, text).choices] == hrefs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("curl http://db:5432 from web", NETWORK),
        ("nc db 5432 from web", NETWORK),
        ("db:5432 from web", NETWORK),
        ("web - > db:5432", NETWORK),
        (
            "shopper -> payment-service/refund",
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
        ("web -> [::1]:80", {**NETWORK, "to": "::1", "port": "80"}),
        (
            "kubectl auth can-i get pods --subresource=log --as alice",
            {"plane": "api", "user": "alice", "verb": "get", "resource": "pods/log"},
        ),
        (
            "kubectl auth can-i get pods web-0 --subresource log --as alice",
            {"plane": "api", "user": "alice", "verb": "get", "resource": "pods/log", "name": "web-0"},
        ),
        (
            "can alice get the logs of web-0 in shop",
            {
                "plane": "api",
                "user": "alice",
                "verb": "get",
                "resource": "pods/log",
                "name": "web-0",
                "namespace": "shop",
            },
        ),
        (
            "alice impersonate bob",
            {"plane": "api", "user": "alice", "verb": "impersonate", "resource": "users", "name": "bob"},
        ),
        (
            "can the service account bot in ci list pods",
            {"plane": "api", "user": "system:serviceaccount:ci:bot", "verb": "list", "resource": "pods"},
        ),
    ],
)
def test_everyday_words_ask_one_thing(examples: ExploredWorld, text: str, expected: dict[str, str]) -> None:
    (choice,) = meanings(examples.world, text).choices
    assert terms(choice.href) == expected


@pytest.mark.parametrize(
    ("text", "hrefs"),
    [
        # Nobody is called `who`, no user like the policy, and no resource `everything`.
        ("who can do anything", ["/permissions"]),
        ("who can delete everything", ["/permissions"]),
        ("can alice delete everything", ["/permissions?user=alice"]),
        ("what does db-from-api do", [NETPOL, "/permissions?user=db-from-api"]),
        ("egress web", ["/network?from=shop%2Fweb"]),
    ],
)
def test_words_that_are_nobodys_name_are_not_taken_for_one(
    examples: ExploredWorld, text: str, hrefs: list[str]
) -> None:
    assert [choice.href for choice in meanings(examples.world, text).choices] == hrefs


def test_words_around_a_connection_leave_it_what_it_is(examples: ExploredWorld) -> None:
    expected = [choice.href for choice in meanings(examples.world, "web -> db").choices]
    for text in (
        "why cant web reach db",
        "is traffic from web to db allowed",
        "which policy blocks web to db",
        "what allows web -> db",
    ):
        assert [choice.href for choice in meanings(examples.world, text).choices] == expected, text


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("what blocks web from db", "/ask?plane=network&from=shop%2Fweb&to=shop%2Fdb&port=5432"),
        ("does db take what web sends on 5432", "/ask?plane=network&from=shop%2Fweb&to=shop%2Fdb&port=5432"),
        ("can web reach the internet", "/network?from=shop%2Fweb&to=outside"),
        ("is db isolated", "/network?focus=shop%2Fdb"),
        ("network policies in shop", NETPOL),
        ("grant alice create pods in dev", "/ask?plane=api&user=alice&verb=create&resource=pods&namespace=dev"),
        ("is alice cluster-admin", "/permissions?user=alice"),
        ("list tools for shopper", "/tools?caller=agents%2Fshopper"),
        ("who sets the timeout of edge", "/ask?plane=gateway&gateway=infra%2Fedge"),
    ],
)
def test_what_cannot_be_read_is_answered_by_questions_about_what_it_names(
    examples: ExploredWorld, text: str, offered: str
) -> None:
    meant = meanings(examples.world, text)
    assert meant.problems
    assert not meant.choices
    assert offered in [choice.href for choice in meant.mentioned]
    page = ask(examples, {"q": (text,)})
    assert (page.status >= 400, page.moved_to) == (True, "")
    assert "It names these" in page.body
    assert offered in [choice["href"] for choice in page.document["mentioned"]]


def test_what_nobody_may_be_asked_is_not_a_question(examples: ExploredWorld) -> None:
    for text in ("SELECT * FROM pods", "can shopper read resource file:///x"):
        assert meanings(examples.world, text).problems
    (offered, *_) = meanings(examples.world, "can shopper issue a refund").mentioned
    assert (offered.plane, terms(offered.href)["tool"]) == ("tool", "refund")


def test_scaling_is_about_the_number_of_an_object(examples: ExploredWorld) -> None:
    asked = [terms(choice.href) for choice in meanings(examples.world, "alice scale deployment web in shop").choices]
    assert [each["verb"] for each in asked] == ["update", "patch"]
    assert all((each["resource"], each["name"]) == ("deployment/scale", "web") for each in asked)


def test_hints_are_near_what_was_typed(examples: ExploredWorld) -> None:
    for text in ("alice pods dev", "some words in shop"):
        (problem,) = meanings(examples.world, text).problems
        assert "did you mean" not in (problem.hint or "")
    (problem,) = meanings(examples.world, "alice crate pods in dev").problems
    assert "create" in (problem.hint or "")


def test_a_user_of_an_expression_is_found_by_a_part_of_the_name(tmp_path: Path) -> None:
    expression = 'request.userInfo.username == "carol@corp.example" && "sre-team" in request.userInfo.groups'
    policy = {"kind": "ClusterAuthorizationPolicy", "metadata": {"name": "carol"}}
    policy |= {"apiVersion": "tierwall.io/v1alpha1", "spec": {"effect": "Allow", "expression": expression}}
    (tmp_path / "policy.json").write_text(json.dumps(policy))
    world = explored_of(tmp_path).world
    of_carol = "/permissions?user=carol%40corp.example"
    for text, hrefs in (
        ("carol@corp.example", [of_carol]),
        ("carol", [of_carol, "/policy/ClusterAuthorizationPolicy.tierwall.io/carol"]),
        ("what can carol do", [of_carol, "/permissions?user=carol"]),
        ("what can carol@corp.example do", [of_carol]),
        ("sre-team", ["/permissions?group=sre-team"]),
    ):
        assert [choice.href for choice in meanings(world, text).choices] == hrefs


def test_as_many_meanings_as_are_offered_may_be_more(tmp_path: Path) -> None:
    (tmp_path / "pods.yaml").write_text("".join(POD % ("web", f"team-{number}") for number in range(40)))
    page = ask(explored_of(tmp_path), {"q": ("web",)})
    assert "may mean many things" in page.body
    assert "These are the first 30" in page.body


def test_an_arrow_with_two_heads_is_two_questions(named: ExploredWorld) -> None:
    for arrow in ("<->", "↔", "⇄", "⟷", "<=>"):
        asked = [terms(choice.href) for choice in meanings(named.world, f"six {arrow} my-app-v2:8080").choices]
        assert [(each["from"], each["to"]) for each in asked] == [
            ("team-a/six", DEPLOYMENT),
            (DEPLOYMENT, "team-a/six"),
        ]


@pytest.mark.parametrize(
    ("text", "subjects"),
    [
        ("jane@example.com list pods", [("jane@example.com", "")]),
        ("jane list pods", [("jane@example.com", ""), ("jane", "")]),
        ("deployer list pods", [(BOT, ""), ("deployer", "")]),
        ("serviceaccount ci/deployer list pods", [(BOT, "")]),
        ("sa/other list pods", [("other", "")]),
        ("oidc:dev team list pods", [("", "oidc:dev team"), ("oidc:dev team", "")]),
        ("members of ops list pods", [("", "ops")]),
        ("group ops list pods", [("", "ops")]),
        ("kubectl auth can-i list pods --as jane@example.com", [("jane@example.com", "")]),
        ("can-i list pods --as-group=ops", [("", "ops")]),
        ("why can bob not list pods", [("bob", "")]),
        ("bob list pods -A", [("bob", "")]),
        ("bob list pods in all namespaces", [("bob", "")]),
    ],
)
def test_whoever_has_a_name_is_asked_about(named: ExploredWorld, text: str, subjects: list[tuple[str, str]]) -> None:
    asked = [terms(choice.href) for choice in meanings(named.world, text).choices]
    assert [(each.get("user", ""), each.get("groups", "")) for each in asked] == subjects
    assert {(each["verb"], each["resource"], each.get("name"), each.get("namespace")) for each in asked} == {
        ("list", "pods", None, None)
    }


def test_whoever_says_i_is_one_of_those_who_are_known(named: ExploredWorld) -> None:
    for text in ("can I list pods", "kubectl auth can-i list pods"):
        everybody, *users = meanings(named.world, text).choices
        assert everybody.href == "/permissions"
        assert [terms(choice.href)["user"] for choice in users] == ["jane@example.com", BOT]
    assert meanings(named.world, "can-i list pods --as jane --as-group ops").problems


@pytest.mark.parametrize(
    ("text", "verbs", "resource"),
    [
        ("bob read secrets in x", ["get", "list", "watch"], "secrets"),
        ("does bob have access to secrets in x", ["get", "list", "watch"], "secrets"),
        ("bob edits configmaps in x", ["update", "patch"], "configmaps"),
        ("bob remove the pods in x", ["delete"], "pods"),
        ("can bob exec into pods in x", ["create"], "pods/exec"),
    ],
)
def test_words_for_verbs_are_the_verbs_that_they_mean(
    named: ExploredWorld, text: str, verbs: list[str], resource: str
) -> None:
    asked = [terms(choice.href) for choice in meanings(named.world, text).choices]
    assert [each["verb"] for each in asked] == verbs
    assert {(each["user"], each["resource"], each["namespace"]) for each in asked} == {("bob", resource, "x")}
    (asked_inside,) = (terms(choice.href) for choice in meanings(named.world, "bob exec into six in team-a").choices)
    assert (asked_inside["resource"], asked_inside["name"]) == ("pods/exec", "six")


@pytest.mark.parametrize(
    ("text", "href"),
    [
        ("tools of shopper", "/tools?caller=agents%2Fshopper"),
        ("shopper tools", "/tools?caller=agents%2Fshopper"),
        ("which tools may shopper call", "/tools?caller=agents%2Fshopper"),
        ("what can shopper call at prod-gateway", "/tools?caller=agents%2Fshopper&gateway=prod%2Fprod-gateway"),
        ("shopper -> payment-service", "/tools?caller=agents%2Fshopper&backend=XBackend%2Fprod%2Fpayment-service"),
        ("who can call payment-service", "/tools?backend=XBackend%2Fprod%2Fpayment-service"),
    ],
)
def test_questions_about_tools_lead_to_their_matrix(examples: ExploredWorld, text: str, href: str) -> None:
    assert [choice.href for choice in meanings(examples.world, text).choices] == [href]
    assert ask(examples, {"q": (text,)}).moved_to == href


def test_use_is_a_verb_of_tools_and_of_permissions(examples: ExploredWorld) -> None:
    for text in ("may shopper use refund on payment-service", "shopper -> payment-service refund", "shopper -> refund"):
        (choice,) = meanings(examples.world, text).choices
        assert (choice.plane, terms(choice.href)["tool"]) == ("tool", "refund")
    (choice,) = meanings(examples.world, "may alice use configmaps in dev").choices
    assert (choice.plane, terms(choice.href)["verb"]) == ("api", "use")
    methods = [
        terms(choice.href) for choice in meanings(examples.world, "shopper tools/list on payment-service").choices
    ]
    assert [(each["method"], each.get("tool")) for each in methods] == [("tools/list", None)]


def test_the_words_of_an_answer_and_of_a_choice_ask_the_same(examples: ExploredWorld) -> None:
    for text in (
        "shopper pay",
        "alice create pods in dev",
        "settings chat",
        "settings edge#web",
        "web -> db",
        "shop",
        "web",
        "who can call pay",
        "alice read pods",
        "what can alice do in dev",
        "what may shopper call",
    ):
        for choice in meanings(examples.world, text).choices:
            again = [each.href for each in meanings(examples.world, choice.words).choices]
            assert choice.href in again or not choice.plane, choice.words


def test_fields_of_settings_lead_to_their_place(examples: ExploredWorld) -> None:
    asked = [choice.href for choice in meanings(examples.world, "settings chat").choices]
    for text in ("what is the timeout of chat", "rate limit for chat", "which settings apply to HTTPRoute/team/chat"):
        assert [choice.href for choice in meanings(examples.world, text).choices] == asked
    (choice,) = meanings(examples.world, "settings at Gateway/infra/edge for chat rule llm").choices
    assert terms(choice.href)["rule"] == "llm"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("web -> example.com:443", "policies see addresses"),
        ("web -> https://example.com/", "policies see addresses"),
        ("web -> fd00::1", "`web -> [fd00::1]:443`"),
        ("web -> :5432", "`shop/web -> shop/db:5432`"),
        ("who can reach pages", "name a pod"),
        ("nobodys -> db:5432", "an end is a pod"),
        ("alice list pods on payment-service", "ask for example"),
        ("my-pods x -> db:5432", "an end is a pod"),
    ],
)
def test_what_has_no_answer_gets_a_hint(examples: ExploredWorld, text: str, hint: str) -> None:
    problems = meanings(examples.world, text).problems
    assert any(hint in problem.hint for problem in problems), problems


def test_a_question_that_is_made_to_be_slow_is_read_at_once(examples: ExploredWorld) -> None:
    for part in (
        "who ",
        "is ",
        "not ",
        "- ",
        "<-",
        ">",
        "/",
        "the ",
        "a.",
        "settings ",
        "rule ",
        "pods in ",
        "1,",
        "web, ",
    ):
        text = part * (1000 // len(part))
        start = time.process_time()
        for whole in (text, f"web {text}"[:1000], f"{text[:990]} -> db"):
            meanings(examples.world, whole)
        assert time.process_time() - start < 1, part
