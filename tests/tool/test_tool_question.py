"""Questions and expectations: every mistake is named, with a hint, and all of them at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.tool_objects import (
    AGENT,
    BASE,
    NETWORKING,
    PROTOTYPE,
    Object,
    asked,
    backend,
    cel,
    gateway,
    guarded,
    inline,
    manifest,
    on_backend,
    on_gateway,
    sa,
    spiffe,
    v0,
    v1,
    verdict,
)
from tests.worlds.tool_worlds import snapshot
from tierwall import planes
from tierwall.core.answer import DEFAULT, Answer, Decider
from tierwall.core.diagnostics import InputError, UnknownName
from tierwall.core.expectation import mismatches
from tierwall.core.reference import Reference
from tierwall.core.verdict import Verdict
from tierwall.tool.detail import ToolDetail
from tierwall.tool.model import PolicyLevel
from tierwall.tool.question import EXPECTATIONS, ToolQuestion, ask

PLAIN = [gateway(), backend()]
A_SPIFFE_ID = "expected a SPIFFE id such as `spiffe://cluster.local/ns/shop/sa/agent` as `caller`"
A_CALLER = "expected a SPIFFE id or {serviceAccount: namespace/name} as `caller`"


def problems(objects: list[Object], **question: Any) -> list[tuple[str, str]]:
    usual = {"gateway": "prod/prod-gateway", "backend": "prod/payment-service"}
    whole = {key: value for key, value in {**usual, **question}.items() if value is not ...}
    with pytest.raises(InputError) as caught:
        planes.ask("tool", snapshot(objects), whole, {})
    codes = [
        "TW704" if diagnostic.message.startswith("there is no ") else "TW703" for diagnostic in caught.value.diagnostics
    ]
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == codes
    assert isinstance(caught.value, UnknownName) == (set(codes) == {"TW704"})
    return [(diagnostic.message, diagnostic.hint) for diagnostic in caught.value.diagnostics]


BACKENDS = "`namespace/name`, `Service/namespace/name` or `AgentgatewayBackend/namespace/name`"


@pytest.mark.parametrize(
    ("question", "message", "hint"),
    [
        (
            {"gateway": "prod/prod-gatway"},
            "there is no Gateway `prod/prod-gatway`",
            "did you mean `prod/prod-gateway`?",
        ),
        ({"gateway": ...}, "expected `namespace/name` as `gateway`, found nothing", ""),
        (
            {"gateway": "prod-gateway"},
            "there is no Gateway `default/prod-gateway`",
            "did you mean `prod/prod-gateway`?",
        ),
        ({"gateway": 3}, "expected `namespace/name` as `gateway`, found `3`", ""),
        (
            {"backend": "prod/payments-service"},
            "there is no XBackend `prod/payments-service`",
            "did you mean `prod/payment-service`?",
        ),
        (
            {"backend": ...},
            f"expected {BACKENDS} as `backend`, found nothing",
            "",
        ),
        (
            {"backend": "Pod/prod/x"},
            f"expected {BACKENDS} as `backend`, found `Pod/prod/x`",
            "",
        ),
        ({"listener": "wbe"}, "there is no listener `wbe` on Gateway/prod/prod-gateway", "did you mean `web`?"),
        (
            {"listener": "zzz"},
            "there is no listener `zzz` on Gateway/prod/prod-gateway",
            "use one of its listeners: web",
        ),
        (
            {"caller": "prod/agent"},
            f"{A_SPIFFE_ID}, found `prod/agent`",
            "write a ServiceAccount as {serviceAccount: namespace/name}",
        ),
        ({"caller": {"serviceAccount": "prod/agent/x"}}, f"{A_CALLER}, found `prod/agent/x`", ""),
        ({"caller": {"user": "agent"}}, f'{A_CALLER}, found `{{"user": "agent"}}`', ""),
        ({"method": 3}, "expected a string as `method`, found `3`", ""),
        ({"tool": ["x"]}, 'expected a string as `tool`, found `["x"]`', ""),
        ({"arguments": "x"}, "expected a map as `arguments`, found `x`", ""),
        ({"http": "GET"}, "expected a map as `http`, found `GET`", ""),
        ({"http": {"path": 3}}, "expected a string as `http.path`, found `3`", ""),
        ({"http": {"verb": "GET"}}, "unknown key `verb` in `http`", ""),
        ({"http": {"header": {}}}, "unknown key `header` in `http`", "did you mean `headers`?"),
        ({"http": {"headers": {"x": ["y"]}}}, 'expected a string as header `x`, found `["y"]`', ""),
        ({"http": {"headers": {"x": "1", "X": "2"}}}, "header `x` is given twice", ""),
        ({"tol": "x"}, "unknown key `tol` in a question of the tool plane", "did you mean `tool`?"),
        ({"time": "noon"}, "expected an RFC 3339 time as `time`, found `noon`", ""),
        (
            {"externalAuth": {"XAccessPolicy/prod/p": "allow"}},
            "expected Allow or Deny as the answer for `XAccessPolicy/prod/p`, found `allow`",
            "did you mean `Allow`?",
        ),
        (
            {"externalAuth": {"XAccessPolicy/prod/q": "Allow"}},
            "there is no policy `XAccessPolicy/prod/q`",
            "did you mean `XAccessPolicy/prod/p`?",
        ),
    ],
)
def test_a_mistake_is_named_with_a_hint(question: Object, message: str, hint: str) -> None:
    assert problems(guarded(), **question) == [(message, hint)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "agent",
        "spiffe://",
        "spiffe:///ns/a",
        "spiffe://td/",
        "spiffe://td//x",
        "spiffe://td/a/",
        "spiffe://td/./a",
        "spiffe://td/..",
        "spiffe://Td/a",
        "spiffe://td:80/a",
        "spiffe://user@td/a",
        "spiffe://td/a?b",
        "spiffe://td/a#b",
        "spiffe://td/a b",
        "spiffe://td/ä",
        "https://td/a",
        "SPIFFE://td/a",
        "spiffe://td/" + "a" * 2048,
        f"{AGENT}\n",
    ],
)
def test_a_malformed_spiffe_id_is_refused(text: str) -> None:
    assert len(problems(PLAIN, caller=text)) == 1


@pytest.mark.parametrize(
    "text", [AGENT, "spiffe://td", "spiffe://a_b-c.d/E/f.g/-_", "spiffe://td/...", "spiffe://td/.a"]
)
def test_a_well_formed_spiffe_id_is_accepted(text: str) -> None:
    assert verdict(PLAIN, caller=text, tool="x") == "Allow"


def test_all_mistakes_are_named_at_once() -> None:
    messages = problems(PLAIN, gateway="a", backend="b", caller="c", method=1, http=2, unknown=3, externalAuth=4)
    assert len(messages) == 7


def test_a_question_must_name_one_of_several_listeners() -> None:
    objects = [gateway("prod-gateway", "web", "tls"), backend()]
    message = "expected one of the 2 listeners of Gateway/prod/prod-gateway as `listener`, found nothing"
    assert problems(objects, tool="x") == [(message, "name one of web, tls")]


def test_a_gateway_without_listeners_has_no_port() -> None:
    bare = {**gateway(), "spec": {"gatewayClassName": "c"}}
    objects = [bare, backend(), v1("p", on_gateway(), {"authorization": {"type": "Inline", "ports": [80]}})]
    assert verdict(objects, tool="x") == "Deny"
    assert "it has no listeners" in problems(objects, listener="web")[0][1]


def test_a_listener_of_a_listener_set_is_found_and_policies_on_sections_do_not_reach_it() -> None:
    allowing = gateway()
    allowing["spec"]["allowedListeners"] = {"namespaces": {"from": "Same"}}
    spec = {"parentRef": {"name": "prod-gateway"}, "listeners": [{"name": "extra", "port": 9000, "protocol": "HTTP"}]}
    added = manifest("gateway.networking.k8s.io/v1", "ListenerSet", "set", spec)
    whole = v1("whole", on_gateway(), {"authorization": {"type": "Inline", "ports": [9000]}})
    section = v1("section", on_gateway(section="extra"), {"source": spiffe("spiffe://td")})
    got = asked([allowing, added, backend(), whole, section], listener="extra", tool="x")
    assert (got["verdict"], got["evaluated"]) == ("Allow", ["XAccessPolicy/prod/whole"])


def test_a_backend_that_both_groups_have_must_be_told_apart() -> None:
    objects = [
        gateway(),
        backend(group=NETWORKING),
        backend(group=PROTOTYPE),
        v1("p", on_backend(), {"source": spiffe("spiffe://td")}),
    ]
    ((message, hint),) = problems(objects)
    assert message == "XBackend `prod/payment-service` is ambiguous: both groups have one"
    assert f"`XBackend.{NETWORKING}/prod/payment-service`" in hint
    assert verdict(objects, backend=f"XBackend.{NETWORKING}/prod/payment-service", tool="x") == "Deny"
    assert verdict(objects, backend=f"XBackend.{PROTOTYPE}/prod/payment-service", tool="x") == "Allow"


def test_a_backend_may_be_written_as_a_reference() -> None:
    assert verdict(PLAIN, backend="XBackend/prod/payment-service", tool="x") == "Allow"


def test_a_service_must_exist_where_services_are_known() -> None:
    service = manifest("v1", "Service", "pay", {})
    assert verdict(PLAIN, backend="Service/prod/any", tool="x") == "Allow"
    assert verdict([*PLAIN, service], backend="Service/prod/pay", tool="x") == "Allow"
    assert problems([*PLAIN, service], backend="Service/prod/pya") == [
        ("there is no Service `prod/pya`", "did you mean `prod/pay`?")
    ]


def test_a_question_without_a_method_is_about_plain_http() -> None:
    objects = [gateway(), backend(), v0("p", on_gateway(), {"source": sa(), "authorization": inline("x")})]
    assert asked(objects, tool="x")["verdict"] == "Allow"
    plain = ToolQuestion(gateway="prod/prod-gateway", backend="prod/payment-service", caller=AGENT, tool="x")
    assert ask(snapshot(objects), plain).verdict is Verdict.DENY


def test_a_trace_names_the_method_that_a_subscription_needs() -> None:
    rule = {"authorization": {"type": "Inline", "mcp": {"methods": [{"name": "tools"}], **BASE}}}
    note = asked(guarded(rule), method="subscriptions/listen", uri="file:///a")["trace"][0]["note"]
    wanted = "rules[0] (r0): resources/subscribe, which it needs, is not among tools/*, base protocol methods"
    assert note == wanted


def test_a_trace_says_why_no_rule_matched() -> None:
    rules = [
        {"source": spiffe("spiffe://td"), "authorization": {"type": "Inline"}},
        {
            "source": sa(),
            "authorization": {"type": "Inline", "mcp": {"methods": [{"name": "tools/call", "params": ["add"]}]}},
        },
        {"source": sa(), "authorization": cel("request.headers['x-env'] == 'prod'")},
        {"source": sa(), "authorization": {"type": "Inline", "hosts": ["example.com"]}},
        {"authorization": {"type": "Inline", "mcp": {"methods": [{"name": "prompts"}]}}},
    ]
    note = asked(guarded(*rules), tool="rm")["trace"][0]["note"]
    assert note == (
        "rules[1] (r1): `rm` is not among add; rules[2] (r2): the expression fails: no such key: x-env; rules[3] (r3): "
        "a request without a host does not match example.com; rules[4] (r4): tools/call is not among prompts/*"
    )
    assert (
        asked(guarded(*rules[:4]), caller="spiffe://td/x", tool="rm")["trace"][0]["note"]
        == "no rule applies to spiffe://td/x"
    )


def test_an_invalid_policys_trace_says_what_is_wrong_with_it() -> None:
    note = asked(guarded({"authorization": cel("request.mcp.tool == 'x'")}), tool="x")["trace"][0]["note"]
    assert note.startswith("expression cannot be used: 1:13: no field `tool` in request.mcp")


# Expectations


A, B = Reference("XAccessPolicy", "prod", "a"), Reference("XAccessPolicy", "prod", "b")


def answer(level: PolicyLevel, evaluated: tuple[Reference, ...], *decided_by: Decider) -> Answer:
    """An allowing answer with what expectations look at."""
    plain = [gateway(), backend()]
    request = ask(snapshot(plain), ToolQuestion(gateway="prod/prod-gateway", backend="prod/payment-service")).detail
    detail = ToolDetail(evaluated=evaluated, level=level, request=request.request)
    return Answer(plane="tool", verdict=Verdict.ALLOW, sentence="", decided_by=decided_by, steps=(), detail=detail)


GOT = answer(PolicyLevel.BACKEND, (A, B), Decider(A, "rules[0]"), Decider(B, "rules[1]", "pay"))
BY_DEFAULT = answer(PolicyLevel.DEFAULT, (), DEFAULT)


@pytest.mark.parametrize(
    "expect",
    [
        {},
        {"verdict": "Allow", "level": "Backend"},
        {"evaluated": ["XAccessPolicy/prod/a", "XAccessPolicy/prod/b"]},
        {"decidedBy": "XAccessPolicy/prod/b"},
        {"decidedBy": "XAccessPolicy/prod/b rules[1]"},
        {"decidedBy": "XAccessPolicy/prod/b pay"},
        {"decidedBy": {"policy": "XAccessPolicy/prod/b", "name": "pay"}},
        {"decidedBy": ["XAccessPolicy/prod/a", "XAccessPolicy/prod/b"]},
        {"decidedBy": {"policy": "XAccessPolicy/prod/b"}},
        {"decidedBy": [{"policy": "XAccessPolicy/prod/b", "rule": "rules[1]"}]},
    ],
)
def test_an_expectation_that_holds(expect: Object) -> None:
    assert mismatches(expect, GOT, EXPECTATIONS) == []


@pytest.mark.parametrize("wanted", [[], "Default", ["Default"], [{"policy": "Default"}]])
def test_every_spelling_of_the_default_is_accepted(wanted: Any) -> None:
    assert mismatches({"decidedBy": wanted, "evaluated": []}, BY_DEFAULT, EXPECTATIONS) == []
    assert mismatches({"decidedBy": wanted}, GOT, EXPECTATIONS)


@pytest.mark.parametrize(
    ("expect", "words"),
    [
        ({"verdict": "Deny"}, "verdict: expected Deny, got Allow"),
        ({"level": "Gateway"}, "level: expected Gateway, got Backend"),
        (
            {"evaluated": ["XAccessPolicy/prod/b", "XAccessPolicy/prod/a"]},
            "evaluated: expected XAccessPolicy/prod/b, XAccessPolicy/prod/a, got",
        ),
        ({"evaluated": []}, "evaluated: expected none, got"),
        (
            {"decidedBy": "XAccessPolicy/prod/c"},
            "decidedBy: expected XAccessPolicy/prod/c, got XAccessPolicy/prod/a rules[0], ",
        ),
        ({"decidedBy": "XAccessPolicy/prod/b rules[0]"}, "decidedBy: expected XAccessPolicy/prod/b rules[0], got"),
    ],
)
def test_an_expectation_that_does_not_hold_says_what_was_got(expect: Object, words: str) -> None:
    (mismatch,) = mismatches(expect, GOT, EXPECTATIONS)
    assert mismatch.startswith(words)


@pytest.mark.parametrize(
    "expect",
    [
        {"verdict": "allow"},
        {"verdict": True},
        {"level": "gateway"},
        {"evaluated": "x"},
        {"evaluated": [1]},
        {"decidedBy": 3},
        {"decidedBy": ""},
        {"tier": "x"},
    ],
)
def test_a_malformed_expectation_is_an_error(expect: Object) -> None:
    with pytest.raises(InputError) as caught:
        mismatches(expect, GOT, EXPECTATIONS)
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["TW701"]
