"""Commands of kubectl as questions, the policies of one end, and its state (docs/explorer.md#ask)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.explore.conftest import explored_of
from tierwall.explore.ask import parse_query
from tierwall.explore.asking import meanings
from tierwall.explore.page import ExploredWorld


def asked(explored: ExploredWorld, text: str) -> list[dict[str, str]]:
    """Return the terms of every question that a text may be."""
    parsed = (parse_query(choice.href) for choice in meanings(explored.world, text).choices)
    return [{name: values[-1] for name, values in terms.items() if name != "plane"} for terms in parsed]


@pytest.mark.parametrize(
    ("command", "verb", "resource", "name"),
    [
        ("get pods", "list", "pods", ""),
        ("get po -o yaml", "list", "po", ""),
        ("get pod web-0", "get", "pod", "web-0"),
        ("get deploy/web", "get", "deploy", "web"),
        ("describe pod web-0", "get", "pod", "web-0"),
        ("delete pods.v1. web-0", "delete", "pods.v1.", "web-0"),
        ("edit deployment web", "patch", "deployment", "web"),
        ("scale deploy/web --replicas=3", "patch", "deploy/scale", "web"),
        ("create configmap new", "create", "configmap", ""),
        ("logs web-0 --tail 5", "get", "pods/log", "web-0"),
        ("exec -it web-0 -- get pods -A", "create", "pods/exec", "web-0"),
        ("port-forward pod/web-0 8080:80", "create", "pods/portforward", "web-0"),
    ],
)
def test_a_command_asks_what_kubectl_would_ask(
    examples: ExploredWorld, command: str, verb: str, resource: str, name: str
) -> None:
    words, dashes, inside = command.partition(" -- ")
    terms = {"user": "alice", "verb": verb, "resource": resource, **({"name": name} if name else {})}
    in_shop = [{**terms, "namespace": "shop"}]
    assert asked(examples, f"kubectl {words} --as alice -n shop{dashes}{inside}") == in_shop
    assert asked(examples, f"kubectl --as=alice --namespace=shop {command}") == in_shop
    # Without a namespace, the one of a context that sets none, or every one.
    assert asked(examples, f"k --as alice {command}") == [{**terms, "namespace": "default"}, terms]


def test_a_command_may_be_about_the_cluster(examples: ExploredWorld) -> None:
    assert asked(examples, "kubectl get nodes --as alice") == [{"user": "alice", "verb": "list", "resource": "nodes"}]
    assert asked(examples, "kubectl get pods -A --as alice") == [{"user": "alice", "verb": "list", "resource": "pods"}]
    assert asked(examples, "kubectl get pods -A --as-group ops") == [
        {"groups": "ops", "verb": "list", "resource": "pods"}
    ]


def test_whoever_runs_a_command_is_not_kubectl(examples: ExploredWorld) -> None:
    everybody, *users = asked(examples, "kubectl get pods -n shop")
    assert not everybody
    assert "kubectl" not in [each["user"] for each in users]


@pytest.mark.parametrize(
    "command",
    [
        "get pods -l app=web --as alice",
        "get pods --field-selector spec.nodeName=a --as alice",
        "get pods -w --as alice",
        "get pods,secrets --as alice",
        "get pods a b --as alice",
        "get --raw /healthz --as alice",
        "delete pods --all --as alice",
        "apply -f web.yaml --as alice",
        "create -f web.yaml --as alice",
        "create token robot --as alice",
        "logs -f deploy/web --as alice",
        "exec deploy/web --as alice",
        "get pods -n a -n b --as alice",
        "get pods -n --as",
        "get pods --as alice --as-group ops",
        "get",
    ],
)
def test_a_command_that_does_not_say_all_is_not_guessed(examples: ExploredWorld, command: str) -> None:
    meant = meanings(examples.world, f"kubectl {command}")
    assert meant.problems
    assert not meant.choices


@pytest.mark.parametrize(
    "text",
    ["db ingress", "db's inbound traffic", "DB incoming connections", "shop/db ingress", "ingress of db"],
)
def test_the_direction_may_stand_behind(examples: ExploredWorld, text: str) -> None:
    assert asked(examples, text) == [{"to": "shop/db"}]
    swapped = text.replace("ingress", "egress").replace("inbound", "outbound").replace("incoming", "outgoing")
    assert asked(examples, swapped) == [{"from": "shop/db"}]


@pytest.mark.parametrize(
    "text",
    [
        "which policies apply to db",
        "policies for db:5432",
        "what protects db",
        "rules that select shop/db",
        "policy of sts/db",
    ],
)
def test_the_policies_of_an_end_are_those_that_select_it(examples: ExploredWorld, text: str) -> None:
    *policies, (words, href) = [(choice.words, choice.href) for choice in meanings(examples.world, text).choices]
    assert [words.split()[0] for words, _ in policies] == [
        "AdminNetworkPolicy/allow-monitoring",
        "NetworkPolicy/shop/db-from-api",
        "BaselineAdminNetworkPolicy/default",
    ]
    assert all(href.startswith("/policy/") and words.endswith("for ingress") for words, href in policies)
    assert words.startswith("Who reaches")
    assert href.startswith("/network?focus=")


def test_policies_of_a_namespace_and_of_a_place(examples: ExploredWorld) -> None:
    names = [choice.words.split()[0] for choice in meanings(examples.world, "policies of shop").choices]
    assert "NetworkPolicy/shop/db-from-api" in names
    places = meanings(examples.world, "which policies apply to HTTPRoute/team/chat").choices
    assert {choice.plane for choice in places} == {"gateway"}


def test_nothing_of_another_kind_is_taken_for_a_pod(examples: ExploredWorld) -> None:
    for name in ("HTTPRoute/shop/api", "Deployment/shop/db", "shop/nobody", "alice"):
        assert not meanings(examples.world, f"policies on {name}").choices


def test_whoever_is_blocked_may_be_so_on_either_side(examples: ExploredWorld) -> None:
    for text in ("why is web blocked", "is shop/web cut off?", "why was web denied", "isn't web refused"):
        assert asked(examples, text) == [{"to": "shop/web"}, {"from": "shop/web"}]
    assert asked(examples, "why is alice denied") == [{"user": "alice"}]
    assert meanings(examples.world, "why is nobody-here blocked").problems


def test_a_name_comes_before_a_word(tmp_path: Path) -> None:
    pod = (
        "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: a}\n"
        "spec: {containers: [{name: c, image: i}]}\n"
    )
    binding = (
        "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: b}\n"
        "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}\n"
        "subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: kubectl}]\n"
    )
    (tmp_path / "all.yaml").write_text(pod % "web" + pod % "egress" + binding)
    explored = explored_of(tmp_path)
    assert not any(terms == {"from": "a/web"} for terms in asked(explored, "web egress"))
    assert asked(explored, "kubectl get pods in a") == [
        {"user": "kubectl", "verb": "get", "resource": "pods", "namespace": "a"}
    ]
    (lonely,) = meanings(explored.world, "which policies apply to web").choices
    assert "no network policy selects it" in lonely.words
