"""Bad input: a clear error, a closed decision, and bounded time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.worlds.api_fakes import document, policy
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

CREATE: dict[str, Any] = {"user": "alice", "verb": "create", "version": "v1", "resource": "pods"}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def got(question: dict[str, Any], *resources: Resource) -> dict[str, Any]:
    start = time.process_time()
    got_document = document(Snapshot.of(resources), question)
    assert time.process_time() - start < 10
    return got_document


NINE = "[1, 2, 3, 4, 5, 6, 7, 8, 9]"
HOSTILE = {
    "deep parentheses": "(" * 5000 + "true" + ")" * 5000,
    "deep negation": "!(" * 5001 + "true" + ")" * 5001,
    "billions of rounds": "".join(f"{NINE}.map({name}, " for name in "abcdefg") + "a" + ")" * 7 + " == []",
    "rounds over the object": "object.list.all(a, object.list.all(b, object.list.all(c, a + b + c > 0)))",
    "a long name": "request" * 10_000,
    "a null character": "\x00",
    "letters": "é" * 1000,
    "quotes": "'" * 999,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_expressions_end_in_time_and_never_allow(name: str) -> None:
    thing = {"list": list(range(-200, 0))}
    assert got({**CREATE, "object": thing}, policy("p", "Allow", HOSTILE[name]))["final"] != "Allow"


@pytest.mark.parametrize("name", sorted(set(HOSTILE) - {"rounds over the object"}))
def test_a_hostile_deny_denies_every_request_in_its_scope(name: str) -> None:
    answer = got(CREATE, policy("p", "Deny", HOSTILE[name]), policy("all", "Allow", "true"))
    assert (answer["verdict"], answer["error"]) == ("Deny", True)


def test_catastrophic_patterns_and_long_texts_end_in_time() -> None:
    mine = policy("p", "Allow", '"x".matches("(a*)*b") || object.s.matches("(a*)*b")')
    assert got({**CREATE, "object": {"s": "a" * 50_000}}, mine)["final"] == "NoOpinion"
    many = policy("p", "Allow", " && ".join(["object.a == 1"] * 5_000))
    assert got({**CREATE, "object": {"a": 1}}, many)["final"] in ("Allow", "Deny", "NoOpinion")


@pytest.mark.parametrize("thing", [nested(5000), [], "text", 7, {"metadata": []}, {"metadata": {"name": {}}}])
def test_malformed_objects_fail_closed(thing: Any) -> None:
    mine = policy("p", "Allow", 'object.metadata.labels["a"] == "b" && request.name == "n" && object == oldObject')
    assert got({**CREATE, "object": thing, "oldObject": thing}, mine)["final"] == "NoOpinion"


@pytest.mark.parametrize(
    "spec", [None, [], "x", {"effect": ["Allow"], "expression": 7}, {"effect": "Allow"}, {"expression": "true"}]
)
def test_malformed_policies_never_allow(spec: Any) -> None:
    broken = Resource("tierwall.io", "v1alpha1", "ClusterAuthorizationPolicy", "", "p", {"spec": spec})
    assert got(CREATE, broken)["verdict"] in ("Deny", "NoOpinion")


def test_names_with_strange_letters_do_not_break_ids() -> None:
    for name in ("ä", "a/b", "", "x" * 300, "\ud800", "a\nb"):
        mine = Resource(
            "tierwall.io",
            "v1alpha1",
            "ClusterAuthorizationPolicy",
            "",
            name,
            policy("p", "Allow", "object.x == 1").value,
        )
        assert got({**CREATE, "object": {"x": 1}}, mine)["final"] == "Allow"
