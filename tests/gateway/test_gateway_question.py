"""Invalid questions, and expectations that do not hold."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.gateway_objects import FULL, snapshot
from tierwall import planes
from tierwall.core.answer import Answer, Decider
from tierwall.core.diagnostics import Diagnostic, InputError, UnknownName
from tierwall.core.expectation import mismatches
from tierwall.core.reference import Reference
from tierwall.gateway.detail import GatewayDetail, Setting
from tierwall.gateway.model.fields import FIELDS, SECTIONS, UNION_FIELDS
from tierwall.gateway.question import EXPECTATIONS, GatewayQuestion, ask


def problems(**given: Any) -> list[tuple[str, str]]:
    unread: list[Diagnostic] = []
    question = GatewayQuestion.read(given, unread)
    with pytest.raises(InputError) as caught:
        ask(snapshot(), question, unread)
    for problem in caught.value.diagnostics:
        assert problem.code == ("TW704" if problem.message.startswith("there is no") else "TW703")
    unknown = {problem.code for problem in caught.value.diagnostics} == {"TW704"}
    assert isinstance(caught.value, UnknownName) is unknown
    return [(problem.message, problem.hint) for problem in caught.value.diagnostics]


@pytest.mark.parametrize(
    ("question", "message", "hint"),
    [
        ({"gateway": "ns/gv"}, "there is no Gateway `ns/gv`", "did you mean `ns/gw`?"),
        ({"gateway": "gw"}, "expected `namespace/name` as `gateway`, found `gw`", ""),
        ({"gateway": "ns/gw", "listener": "wep"}, "there is no listener `wep` in Gateway/ns/gw", "did you mean `web`?"),
        (
            {"gateway": "ns/gw", "listener": "extra"},
            "there is no listener `extra` in Gateway/ns/gw",
            "use one of its listeners",
        ),
        ({"listenerSet": "ns/sat"}, "there is no ListenerSet `ns/sat`", "did you mean `ns/set`?"),
        (
            {"listenerSet": "ns/set", "gateway": "ns/gw", "listener": "admin"},
            "there is no listener `admin` in ListenerSet/ns/set",
            "use one of its listeners: web, extra",
        ),
        ({"route": "HTTPRoute/ns/rout"}, "there is no HTTPRoute/ns/rout", "did you mean `HTTPRoute/ns/route`?"),
        ({"route": "TCPRoute/ns/route"}, "expected one of HTTPRoute, GRPCRoute as kind of `route`", "did you mean"),
        ({"route": "ns/route"}, "expected `Kind/namespace/name` as `route`, found `ns/route`", ""),
        ({"route": "HTTPRoute/ns/route#rule"}, "expected `Kind/namespace/name` as `route`", ""),
        (
            {"route": "HTTPRoute/ns/route", "rule": 2},
            "there is no rule 2 in HTTPRoute/ns/route",
            "write a number from 0 to 1",
        ),
        (
            {"route": "HTTPRoute/ns/route", "rule": -1},
            "there is no rule -1 in HTTPRoute/ns/route",
            "write a number from 0 to 1",
        ),
        ({"route": "HTTPRoute/ns/route", "rule": "ruel"}, "there is no rule named `ruel`", "did you mean `rule`?"),
        ({"route": "HTTPRoute/ns/route", "rule": True}, "expected a number from 0 or a rule name as `rule`", ""),
        ({"backend": "Gateway/ns/gw"}, "expected one of Service, AgentgatewayBackend, InferencePool", ""),
        ({"backend": "Service/ns/svx"}, "there is no Service/ns/svx", "did you mean `Service/ns/svc`?"),
        (
            {"backend": "Service/ns/svc", "backendSection": 81},
            "there is no port `81` in Service/ns/svc",
            "use one of its ports: 80, 8080",
        ),
        (
            {"backend": "AgentgatewayBackend/ns/tools", "backendSection": "targit"},
            "there is no sub-backend `targit` in AgentgatewayBackend/ns/tools",
            "did you mean `target`?",
        ),
        ({"listener": "web"}, "expected `gateway` or `listenerSet` together with `listener`, found none", ""),
        ({"gateway": "ns/gw", "rule": 0}, "expected `route` together with `rule`, found none", ""),
        (
            {"gateway": "ns/gw", "backendSection": 80},
            "expected `backend` together with `backendSection`, found none",
            "",
        ),
        (
            {"gateway": "ns/gw", "profil": "docs"},
            "unknown key `profil` in a question of the gateway plane",
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
        (
            {"gateway": "ns/gw", "request": {"a": 1, "a.b": 2}},
            "fact `a.b` is inside `a`, which is not a map",
            "",
        ),
        ({"gateway": "ns/gw", "request": {"request.": 2}}, "expected a variable such as `request.path`", ""),
        ({"gateway": "ns/gw", "request": {1: 2}}, "expected a variable such as `request.path` as", ""),
        ({}, "expected at least one of `gateway`, `listenerSet`, `route`, `backend`, found none", ""),
    ],
)
def test_a_question_that_cannot_be_asked_says_why(question: dict[str, Any], message: str, hint: str) -> None:
    ((said, hinted),) = problems(**question)
    assert said.startswith(message)
    assert hinted.startswith(hint)


def test_all_problems_of_a_question_are_reported_at_once() -> None:
    request = {"a": 1, "a.b": 2, "c..d": 3}
    messages = problems(
        gateway="ns/gv", route="HTTPRoute/ns/x", backend="nothing", phase="never", extra=1, request=request
    )
    assert len(messages) == 7


def test_defaults_of_a_test_fill_keys_that_the_question_omits() -> None:
    def profile(question: dict[str, Any], defaults: dict[str, Any]) -> str:
        gateway_answer = planes.ask("gateway", snapshot(), question, defaults)
        assert isinstance(gateway_answer, Answer)
        return str(gateway_answer.detail.profile)

    assert profile({"gateway": "ns/gw"}, {"profile": "agentgateway"}) == "agentgateway"
    assert profile({"gateway": "ns/gw", "profile": "docs"}, {"profile": "agentgateway"}) == "docs"
    assert profile({"gateway": "ns/gw", "profile": None}, {}) == "docs"


def test_a_question_has_the_keys_of_a_policy_test() -> None:
    given = FULL | {"profile": "agentgateway", "phase": "PreRouting", "request": {"request.path": "/"}}
    question = GatewayQuestion.from_dict(given)
    assert (question.backend_section, question.rule) == ("target", "rule")
    assert question.to_dict() == given
    assert GatewayQuestion(gateway="ns/gw").to_dict() == {"gateway": "ns/gw"}


P = Reference("AgentgatewayPolicy", "ns", "p")
ANSWER = Answer(
    plane="gateway",
    verdict=None,
    sentence="",
    decided_by=(Decider(P),),
    steps=(),
    detail=GatewayDetail(
        effective={
            "traffic.timeouts": Setting({"request": "5s"}, (P,)),
            "traffic.authorization": Setting([{}], (P,), union=True),
            "backend.health": Setting({"eviction": {"restoreHealth": 1}}, (P,)),
        },
        conflicts=("traffic.timeouts", "backend.tcp"),
        place="Gateway/ns/gw",
        profile="docs",
        phase="PostRouting",
        fields=(),
        profiles_differ=(),
        notes=(),
    ),
)


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
        ({"decidedBy": "AgentgatewayPolicy/ns/p"}, True),
        ({"decidedBy": []}, False),
        ({"notConsidered": []}, True),
    ],
)
def test_every_given_key_of_an_expectation_must_hold(expect: dict[str, Any], holds: bool) -> None:
    assert bool(mismatches(expect, ANSWER, EXPECTATIONS)) is not holds


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ({"verdict": "Allow"}, "unknown key `verdict` in `expect` of a gateway case"),
        ({"effective": {"traffic.timeout": None}}, "there is no field `traffic.timeout`"),
        (
            {"effective": {"traffic.timeouts": {"by": "x"}}},
            "expected `value` and `from`, or null, as `traffic.timeouts`",
        ),
        ({"effective": []}, "expected a map of fields as `effective`"),
        ({"conflicts": "traffic.timeouts"}, "expected a list of field paths as `conflicts`"),
        ({"conflicts": ["traffic"]}, "there is no field `traffic`"),
    ],
)
def test_a_malformed_expectation_is_an_error(expect: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        mismatches(expect, ANSWER, EXPECTATIONS)
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["TW701"]
    assert caught.value.diagnostics[0].message.startswith(message)


# The fields that agentgateway's data plane merges as one unit.
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
    assert {field.path for field in FIELDS.values() if field.union} == UNION_FIELDS
    conditional = {field.path for field in FIELDS.values() if field.conditional}
    assert conditional == {
        f"traffic.{name}"
        for name in ("extAuth", "extProc", "transformation", "directResponse", "rateLimit.local", "rateLimit.global")
    }


def test_union_fields_are_the_authorization_fields() -> None:
    for field in FIELDS.values():
        schema = SECTIONS[field.section].at(*field.keys)
        assert schema is not None
        assert (schema.title == "Authorization") is (field.path in UNION_FIELDS)
