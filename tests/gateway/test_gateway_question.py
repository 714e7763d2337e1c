"""Questions that cannot be asked, expectations that do not hold, and the documents that people read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from gateway_objects import FULL, TCP, TIMEOUT, answer, policy, snapshot

from tierwall.cli.main import root
from tierwall.core.diagnostics import InputError
from tierwall.gateway.fields import FIELDS
from tierwall.gateway.provenance import explain
from tierwall.gateway.question import ask, mismatches, read


def problems(**question: Any) -> list[tuple[str, str]]:
    with pytest.raises(InputError) as caught:
        ask(snapshot(), question, {})
    assert {one.code for one in caught.value.diagnostics} == {"TW703"}
    return [(one.message, one.hint) for one in caught.value.diagnostics]


@pytest.mark.parametrize(
    ("question", "message", "hint"),
    [
        ({"gateway": "ns/gv"}, "there is no Gateway `ns/gv`", "did you mean `ns/gw`?"),
        ({"gateway": "gw"}, "expected `namespace/name` as `gateway`, found `gw`", ""),
        ({"gateway": "ns/gw", "listener": "wep"}, "there is no listener `wep` in Gateway/ns/gw", "did you mean `web`?"),
        (
            {"gateway": "ns/gw", "listener": "extra"},
            "there is no listener `extra` in Gateway/ns/gw",
            "its listeners are",
        ),
        ({"listenerSet": "ns/sat"}, "there is no ListenerSet `ns/sat`", "did you mean `ns/set`?"),
        (
            {"listenerSet": "ns/set", "gateway": "ns/gw", "listener": "admin"},
            "there is no listener `admin` in ListenerSet/ns/set",
            "its listeners are web, extra",
        ),
        ({"route": "HTTPRoute/ns/rout"}, "there is no HTTPRoute/ns/rout", "did you mean `HTTPRoute/ns/route`?"),
        ({"route": "TCPRoute/ns/route"}, "expected one of HTTPRoute, GRPCRoute as kind of `route`", "did you mean"),
        ({"route": "ns/route"}, "expected `Kind/namespace/name` as `route`, found `ns/route`", ""),
        ({"route": "HTTPRoute/ns/route#rule"}, "expected `Kind/namespace/name` as `route`", ""),
        (
            {"route": "HTTPRoute/ns/route", "rule": 2},
            "there is no rule 2 in HTTPRoute/ns/route",
            "it has 2, counted from 0",
        ),
        ({"route": "HTTPRoute/ns/route", "rule": -1}, "there is no rule -1 in HTTPRoute/ns/route", "it has 2"),
        ({"route": "HTTPRoute/ns/route", "rule": "ruel"}, "there is no rule named `ruel`", "did you mean `rule`?"),
        ({"route": "HTTPRoute/ns/route", "rule": True}, "expected a number from 0 or a rule name as `rule`", ""),
        ({"backend": "Gateway/ns/gw"}, "expected one of Service, AgentgatewayBackend, InferencePool", ""),
        ({"backend": "Service/ns/svx"}, "there is no Service/ns/svx", "did you mean `Service/ns/svc`?"),
        (
            {"backend": "Service/ns/svc", "backendSection": 81},
            "there is no port `81` in Service/ns/svc",
            "its ports are 80, 8080",
        ),
        (
            {"backend": "AgentgatewayBackend/ns/tools", "backendSection": "targit"},
            "there is no sub-backend `targit` in AgentgatewayBackend/ns/tools",
            "did you mean `target`?",
        ),
        ({"listener": "web"}, "`listener` needs `gateway` or `listenerSet` beside it", ""),
        ({"gateway": "ns/gw", "rule": 0}, "`rule` needs `route` beside it", ""),
        ({"gateway": "ns/gw", "backendSection": 80}, "`backendSection` needs `backend` beside it", ""),
        (
            {"gateway": "ns/gw", "profil": "docs"},
            "unknown key `profil` in a gateway question",
            "did you mean `profile`?",
        ),
        (
            {"gateway": "ns/gw", "profile": "doc"},
            "expected one of docs, agentgateway as `profile`",
            "did you mean `docs`?",
        ),
        (
            {"gateway": "ns/gw", "phase": "Prerouting"},
            "expected one of PostRouting, PreRouting as `phase`",
            "did you mean",
        ),
        ({"gateway": "ns/gw", "request": "/x"}, "expected a map of facts as `request`", ""),
        ({"gateway": "ns/gw", "request": {"a": 1, "a.b": 2}}, "`a.b` is inside `a`, which is no map in `request`", ""),
        ({"gateway": "ns/gw", "request": {"request.": 2}}, "expected a variable such as `request.path`", ""),
        ({}, "expected at least one of `gateway`, `listenerSet`, `route`, `backend`, found none", ""),
    ],
)
def test_a_question_that_cannot_be_asked_says_why(question: dict[str, Any], message: str, hint: str) -> None:
    ((said, hinted),) = problems(**question)
    assert said.startswith(message)
    assert hinted.startswith(hint)


def test_all_problems_of_a_question_are_said_at_once() -> None:
    found = problems(gateway="ns/gv", route="HTTPRoute/ns/x", backend="nothing", phase="never", extra=1)
    assert len(found) == 5


def test_defaults_of_a_test_hold_where_the_question_is_silent() -> None:
    cluster = snapshot()
    assert read(cluster, {"gateway": "ns/gw"}, {"profile": "agentgateway"}).profile == "agentgateway"
    assert read(cluster, {"gateway": "ns/gw", "profile": "docs"}, {"profile": "agentgateway"}).profile == "docs"


GOT: dict[str, Any] = {
    "effective": {
        "traffic.timeouts": {"value": {"request": "5s"}, "from": "AgentgatewayPolicy/ns/p"},
        "traffic.authorization": {"value": [{}], "from": ["AgentgatewayPolicy/ns/p"]},
        "backend.health": {"value": {"eviction": {"restoreHealth": 1}}, "from": "AgentgatewayPolicy/ns/p"},
    },
    "conflicts": ["traffic.timeouts", "backend.tcp"],
}


@pytest.mark.parametrize(
    ("expect", "holds"),
    [
        ({}, True),
        ({"effective": {"traffic.timeouts": {"from": "AgentgatewayPolicy/ns/p"}}}, True),
        ({"effective": {"traffic.timeouts": {"value": {"request": "5s"}}}}, True),
        ({"effective": {"traffic.timeouts": {}}}, True),
        ({"effective": {"traffic.timeouts": {"value": {"request": "6s"}}}}, False),
        ({"effective": {"traffic.timeouts": {"from": "AgentgatewayPolicy/ns/q"}}}, False),
        ({"effective": {"traffic.timeouts": None}}, False),
        ({"effective": {"traffic.retry": None}}, True),
        ({"effective": {"traffic.retry": {}}}, False),
        ({"effective": {"traffic.authorization": {"from": ["AgentgatewayPolicy/ns/p"]}}}, True),
        ({"effective": {"traffic.authorization": {"from": []}}}, False),
        ({"effective": {"backend.health": {"value": {"eviction": {"restoreHealth": 1.0}}}}}, True),
        ({"effective": {"backend.health": {"value": {"eviction": {"restoreHealth": True}}}}}, False),
        ({"conflicts": ["backend.tcp", "traffic.timeouts"]}, True),
        ({"conflicts": ["backend.tcp"]}, False),
        ({"conflicts": []}, False),
    ],
)
def test_every_given_key_of_an_expectation_must_hold(expect: dict[str, Any], holds: bool) -> None:
    assert bool(mismatches(expect, GOT)) is not holds


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ({"verdict": "Allow"}, "unknown key `verdict` in `expect` of a gateway case"),
        ({"effective": {"traffic.timeout": None}}, "there is no field `traffic.timeout`"),
        (
            {"effective": {"traffic.timeouts": {"by": "x"}}},
            "expected `value` and `from`, or null, for `traffic.timeouts`",
        ),
        ({"effective": []}, "expected a map of fields as `effective`"),
        ({"conflicts": "traffic.timeouts"}, "expected a list of field paths as `conflicts`"),
        ({"conflicts": ["traffic"]}, "there is no field `traffic`"),
    ],
)
def test_a_malformed_expectation_is_an_error(expect: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        mismatches(expect, GOT)
    assert [one.code for one in caught.value.diagnostics] == ["TW701"]
    assert caught.value.diagnostics[0].message.startswith(message)


# What agentgateway's data plane merges as one unit; everything inside is taken whole.
ATOMIC = {
    "frontend": "http tls tcp proxyProtocol connect accessLog tracing metrics networkAuthorization",
    "traffic": "jwtAuthentication basicAuthentication apiKeyAuthentication extAuth extProc rateLimit.local"
    " rateLimit.global transformation csrf cors headerModifiers.request headerModifiers.response hostRewrite timeouts"
    " retry delay directResponse buffer authorization",
    "backend": "tls tcp http tunnel auth health transformation extAuth mcp.authentication mcp.guardrails"
    " mcp.authorization ai.promptGuard ai.defaults ai.overrides ai.transformations ai.finalTransformations ai.prompt"
    " ai.modelAliases ai.promptCaching ai.routes",
}


def test_the_atomic_fields_are_those_of_the_data_plane() -> None:
    assert set(FIELDS) == {f"{section}.{name}" for section, names in ATOMIC.items() for name in names.split()}
    unions = {field.path for field in FIELDS.values() if field.union}
    assert unions == {"traffic.authorization", "frontend.networkAuthorization", "backend.mcp.authorization"}
    conditional = {field.path for field in FIELDS.values() if field.conditional}
    assert conditional == {
        f"traffic.{name}"
        for name in ("extAuth", "extProc", "transformation", "directResponse", "rateLimit.local", "rateLimit.global")
    }


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    never = {"conditional": [{"condition": "false", "policy": {"status": 200}}]}
    policies = [
        policy("wide", "Gateway/gw", traffic=TIMEOUT, created="2024-01-01T00:00:00Z"),
        policy("also", "Gateway/gw", traffic=TIMEOUT, created="2024-01-02T00:00:00Z"),
        policy("narrow", "HTTPRoute/route", traffic={"timeouts": {"request": "9s"}, "directResponse": never}),
        policy("backend", "AgentgatewayBackend/tools", backend={"tls": {"sni": "b.example"}}),
        policy("route", "HTTPRoute/route", backend={"tls": {"sni": "r.example"}} | TCP),
        policy("wrong", "Gateway/gw", traffic={"timeouts": {"request": "soon"}}),
    ]
    file = tmp_path / "all.json"
    objects = [one.value for one in snapshot(*policies)]
    file.write_bytes(msgspec.json.format(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects})))
    return file


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(root, arguments)
    return result.exit_code, result.stdout, result.stderr


ARGUMENTS = (
    *("--gateway", "ns/gw", "--listener", "web", "--route", "HTTPRoute/ns/route", "--rule", "0"),
    *("--backend", "AgentgatewayBackend/ns/tools", "--backend-section", "target"),
)


def test_effective_shows_who_set_a_field_and_whom_it_beat_and_why(manifests: Path) -> None:
    code, out, _ = run("effective", *ARGUMENTS, "-f", str(manifests), "-o", "json")
    assert code == 0
    document = msgspec.json.decode(out)
    fields = {one["field"]: one for one in document["fields"]}
    timeouts = fields["traffic.timeouts"]
    assert timeouts["value"] == {"request": "9s"}
    assert timeouts["set"][0]["policy"] == "AgentgatewayPolicy/ns/narrow"
    line = timeouts["set"][0]["source"]["line"]
    assert '"timeouts"' in manifests.read_text().splitlines()[line - 1]
    assert [(one["policy"], one["why"]) for one in timeouts["over"]] == [
        ("AgentgatewayPolicy/ns/wide", "Route is more specific"),
        ("AgentgatewayPolicy/ns/also", "Route is more specific"),
    ]
    assert timeouts["conflict"] is True
    assert document["conflicts"] == ["traffic.timeouts"]
    assert fields["traffic.directResponse"]["over"][0]["why"] == "no entry of its conditional list is selected"
    assert [one["field"] for one in document["profilesDiffer"]] == ["backend.tls"]
    assert document["profilesDiffer"][0]["agentgateway"]["from"] == "AgentgatewayPolicy/ns/route"
    assert "AgentgatewayPolicy/ns/wrong is refused by admission and takes no part" in document["notes"]


def test_provenance_names_the_lock_the_elder_and_the_oddity_of_the_code() -> None:
    buffer = {"buffer": {"request": {"maxBytes": 1}}}
    every = [
        policy("lock", "Gateway/gw", traffic=TIMEOUT | buffer, override=True, created="2024-01-01T00:00:00Z"),
        policy("young", "Gateway/gw", traffic=TIMEOUT, created="2024-01-02T00:00:00Z"),
        policy("above", "HTTPRoute/route", traffic=TIMEOUT | buffer),
    ]
    cluster = snapshot(*every)
    found = explain(cluster, read(cluster, FULL, {}))["fields"]
    (timeouts,) = [one["over"] for one in found if one["field"] == "traffic.timeouts"]
    assert [one["why"] for one in timeouts] == [
        "AgentgatewayPolicy/ns/lock is older",
        "AgentgatewayPolicy/ns/lock (Gateway) has Override",
    ]
    found = explain(cluster, read(cluster, FULL | {"profile": "agentgateway"}, {}))["fields"]
    (buffers,) = [one["over"] for one in found if one["field"] == "traffic.buffer"]
    assert [one["why"] for one in buffers] == ["agentgateway keeps the least specific value of this field"]


def test_effective_is_a_sentence_first(manifests: Path) -> None:
    code, out, _ = run("effective", *ARGUMENTS, "-f", str(manifests))
    assert code == 0
    place = "Gateway/ns/gw#web, HTTPRoute/ns/route rule rule, AgentgatewayBackend/ns/tools#target"
    assert out.startswith(f"At {place}: 3 settings are in force (profile docs, PostRouting).")
    assert "profile agentgateway differs: backend.tls" in out
    assert "CONFLICT at equal precedence" in out


def test_effective_everywhere_lists_each_way(manifests: Path) -> None:
    code, out, _ = run("effective", "--all", "-f", str(manifests), "-o", "json")
    assert code == 0
    places = [one["place"] for one in msgspec.json.decode(out)]
    assert len(places) == len(set(places))
    assert "Gateway/ns/gw#web, HTTPRoute/ns/route rule rule, Service/ns/svc#80" in places
    assert any(place.startswith("Gateway/ns/gw#admin") for place in places)


def test_effective_takes_facts_of_the_request(manifests: Path) -> None:
    _, out, _ = run("effective", *ARGUMENTS, "--request", "request.path=/x", "-f", str(manifests), "-o", "json")
    assert msgspec.json.decode(out)["effective"]
    assert run("effective", *ARGUMENTS, "--request", "nonsense", "-f", str(manifests))[0] == 2


def test_effective_without_a_place_is_a_usage_error_and_a_wrong_place_fails(manifests: Path) -> None:
    assert run("effective", "-f", str(manifests))[0] == 2
    assert run("effective", "--all", "--gateway", "ns/gw", "-f", str(manifests))[0] == 2
    code, out, error = run("effective", "--gateway", "ns/gv", "-f", str(manifests))
    assert (code, out) == (1, "")
    assert "there is no Gateway `ns/gv` (did you mean `ns/gw`?)" in error


def test_effective_in_a_policy_test_has_only_effective_and_conflicts() -> None:
    assert answer(policy("p", "Gateway/gw", traffic=TIMEOUT), **FULL).keys() == {"effective", "conflicts"}
