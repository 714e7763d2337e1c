"""Every point of docs/semantics.md#tool-plane, and of docs/tool.md#where-the-texts-leave-room."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.tool_objects import (
    AGENT,
    AUTHORIZER,
    BASE,
    NETWORKING,
    OTHER,
    PROTOTYPE,
    T1,
    T2,
    Object,
    asked,
    backend,
    calls,
    cel,
    gateway,
    guarded,
    inline,
    manifest,
    mcp,
    on_backend,
    on_gateway,
    prototype,
    sa,
    spiffe,
    v0,
    v1,
    verdict,
)
from tests.worlds.tool_worlds import snapshot
from tierwall.resources.validity import admission_problems
from tierwall.tool.model import model

ANY = {"source": spiffe()}
NOBODY_HERE = {"source": spiffe(OTHER)}
EXTERNAL = {"type": "ExternalAuth", "externalAuth": AUTHORIZER}
REGEX = "RegularExpression"
BAD_PATH = {"authorization": {"type": "Inline", "paths": [{"type": REGEX, "value": "["}]}}
BAD_HEADER = {"authorization": {"type": "Inline", "headers": [{"type": REGEX, "name": "x", "value": "(?<a"}]}}


def v0_guarded(*rules: Object, **more: Any) -> list[Object]:
    return [gateway(), backend(**more), v0("p", on_gateway(), *rules)]


# docs/semantics.md#who-decided-a-request to docs/semantics.md#evaluated-lists-every-policy-looked-at


def test_deny_is_decided_by_the_one_policy_that_denied() -> None:
    got = asked([*guarded(ANY, created=T1), v1("q", on_gateway(), NOBODY_HERE, created=T2)], tool="x")
    assert got["decidedBy"] == [{"policy": "XAccessPolicy/prod/q", "rule": "spec"}]


def test_allow_ends_with_the_last_policy_and_its_rule() -> None:
    got = asked([*guarded(ANY, created=T1), v1("q", on_gateway(), NOBODY_HERE, ANY, created=T2)], tool="x")
    assert got["decidedBy"][-1] == {"policy": "XAccessPolicy/prod/q", "rule": "rules[1]", "name": "r1"}


def test_without_a_policy_the_default_decides() -> None:
    got = asked([gateway(), backend()], tool="x")
    assert (got["verdict"], got["decidedBy"], got["level"]) == ("Allow", [{"policy": "Default"}], "Default")
    assert got["evaluated"] == []


def test_an_authorizer_that_is_not_asked_and_an_invalid_policy_are_evaluated() -> None:
    asking = v1("a", on_gateway(), NOBODY_HERE, action="ExternalAuth", created=T1)
    broken = v1("b", on_gateway(), ANY, created=T2, typo=True)
    got = asked([gateway(), backend(), broken, asking], tool="x")
    assert got["evaluated"] == ["XAccessPolicy/prod/a", "XAccessPolicy/prod/b"]
    assert got["verdict"] == "Deny"


@pytest.mark.parametrize(
    "policy",
    [
        v1("p", on_gateway(section="other"), NOBODY_HERE),
        v1("p", on_gateway("missing"), NOBODY_HERE),
        v1("p", on_backend("missing"), NOBODY_HERE),
        {**v1("p", on_gateway(), NOBODY_HERE), "metadata": {"name": "p", "namespace": "elsewhere"}},
        v1("p", {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "r"}, NOBODY_HERE),
    ],
    ids=["other listener", "missing Gateway", "missing backend", "other namespace", "other kind"],
)
def test_policies_that_do_not_guard_the_way_are_not_evaluated(policy: Object) -> None:
    assert (
        asked([gateway("prod-gateway", "web", "other"), backend(), policy], listener="web", tool="x")["evaluated"] == []
    )


# docs/semantics.md#kinds-keep-their-spelling to docs/semantics.md#timestamps-are-compared-as-times


def test_the_kind_is_spelled_as_in_the_object_and_does_not_affect_the_order() -> None:
    objects = [v1(name, on_gateway(), ANY, kind=kind) for name, kind in (("a", "XAccessPolicy"), ("b", "AccessPolicy"))]
    got = asked([gateway(), backend(), *reversed(objects)], tool="x")
    assert got["evaluated"] == ["XAccessPolicy/prod/a", "AccessPolicy/prod/b"]


def test_authorizers_do_not_change_the_order_of_policies() -> None:
    objects = [
        v1("a", on_gateway(), ANY),
        v1("b", on_gateway(), ANY, action="ExternalAuth"),
        v1("c", on_gateway(), ANY),
    ]
    got = asked([gateway(), backend(), *objects], tool="x", externalAuth={"XAccessPolicy/prod/b": "Allow"})
    assert [reference[-1] for reference in got["evaluated"]] == ["a", "b", "c"]


def test_timestamps_are_compared_as_times_and_none_sorts_last() -> None:
    times = {"d": "2026-02-01T00:00:00Z", "c": "2026-02-01T00:30:00+01:00", "b": "2026-02-01T00:00:00.000001Z"}
    dated = [v1(name, on_gateway(), ANY, created=when) for name, when in times.items()]
    got = asked([gateway(), backend(), v1("a", on_gateway(), ANY), *dated], tool="x")
    assert [reference[-1] for reference in got["evaluated"]] == ["c", "d", "b", "a"]


# docs/semantics.md#a-caller-that-no-rule-names-is-denied to docs/semantics.md#old-policies-deny-plain-http


@pytest.mark.parametrize("method", ["initialize", "tools/list", "tools/call", "ping", None])
def test_a_caller_that_no_rule_names_is_denied_everything(method: str | None) -> None:
    objects = v0_guarded({"source": spiffe(OTHER), "authorization": inline("x")})
    assert (
        verdict(objects, method=method, tool="x" if method else None, http={"method": "GET"} if not method else None)
        == "Deny"
    )


@pytest.mark.parametrize("method", ["initialize", "tools/list", "prompts/get", "anything/else"])
@pytest.mark.parametrize("authorization", [{}, inline(), inline("x"), cel("request.mcp.tool_name == 'x'")])
def test_a_named_caller_may_use_every_method_but_calls(method: str, authorization: Object) -> None:
    rule = {"source": sa(), **({"authorization": authorization} if authorization else {})}
    assert verdict(v0_guarded(rule), method=method) == "Allow"


def test_calls_need_a_listed_tool_or_a_true_expression() -> None:
    by_name = v0_guarded({"source": sa(), "authorization": inline("x", "y")})
    by_cel = v0_guarded({"source": sa(), "authorization": cel("request.mcp.tool_name.startsWith('x')")})
    assert [verdict(by_name, tool=tool) for tool in ("x", "y", "z", "X")] == ["Allow", "Allow", "Deny", "Deny"]
    assert [verdict(by_cel, tool=tool) for tool in ("x", "xy", "y")] == ["Allow", "Allow", "Deny"]
    assert verdict(by_name, method="tools/call") == "Deny"
    assert verdict(v0_guarded({"source": sa()}), tool="x") == "Deny"
    assert verdict(v0_guarded({"source": sa(), "authorization": inline()}), tool="x") == "Deny"


def test_several_rules_of_one_caller_add_up() -> None:
    rules = [{"source": sa(), "authorization": inline("x")}, {"source": spiffe(), "authorization": inline("y")}]
    assert [verdict(v0_guarded(*rules), tool=tool) for tool in "xyz"] == ["Allow", "Allow", "Deny"]


def test_the_oldest_policies_list_tools_on_the_rule_itself() -> None:
    objects = [gateway(), backend(), prototype("p", on_gateway(), {"source": sa(), "tools": ["x"]})]
    assert [verdict(objects, tool=tool) for tool in "xy"] == ["Allow", "Deny"]


@pytest.mark.parametrize(
    ("http", "expected"),
    [
        ({"method": "GET"}, "Allow"),
        ({"method": "GET", "path": "/other"}, "Deny"),
        ({"method": "DELETE"}, "Deny"),
        ({"method": "DELETE", "headers": {"Mcp-Session-Id": "s"}}, "Allow"),
        ({"method": "DELETE", "path": "/", "headers": {"Mcp-Session-Id": "s"}}, "Deny"),
        ({"method": "POST"}, "Deny"),
        ({"method": "PUT"}, "Deny"),
    ],
)
def test_plain_http_is_denied_except_for_the_stream_and_the_end_of_a_session(http: Object, expected: str) -> None:
    assert verdict(v0_guarded({"source": sa(), "authorization": inline("x")}), http=http) == expected


# docs/semantics.md#expressions-match-calls-only to docs/semantics.md#names-compare-exactly


def test_a_cel_rule_matches_calls_only() -> None:
    objects = guarded({"authorization": cel("true")})
    assert [verdict(objects, method=method, tool="x") for method in ("tools/call", "tools/list", "initialize")] == [
        "Allow",
        "Deny",
        "Deny",
    ]
    assert verdict(objects, http={"method": "GET"}) == "Deny"


def test_http_matchers_beside_an_expression_must_match_too() -> None:
    objects = guarded({"authorization": cel("request.mcp.tool_name == 'x'", methods=["POST"], ports=[8080])})
    assert verdict(objects, tool="x") == "Allow"
    assert verdict(objects, tool="x", http={"method": "PUT"}) == "Deny"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("request.headers['x-env'] == 'prod'", "Deny"),
        ("!(request.headers['x-env'] == 'prod')", "Deny"),
        ("request.headers['x-env'] == 'prod' || request.mcp.tool_name == 'x'", "Allow"),
        ("request.mcp.tool_name == 'x' || request.headers['x-env'] == 'prod'", "Allow"),
        ("!(request.headers['x-env'] == 'prod' && request.mcp.tool_name == 'y')", "Allow"),
        ("!('x-env' in request.headers)", "Allow"),
        ("request.time.getFullYear() > 2000", "Deny"),
        ("request.host == 'example.com'", "Deny"),
    ],
)
def test_an_error_does_not_match_and_only_and_and_or_absorb_it(expression: str, expected: str) -> None:
    assert verdict(guarded({"authorization": cel(expression)}), tool="x") == expected


def test_a_call_without_a_tool_is_an_error_of_the_expression() -> None:
    assert verdict(guarded({"authorization": cel("request.mcp.tool_name != 'x'")}), method="tools/call") == "Deny"
    assert verdict(guarded({"authorization": cel("!has(request.mcp.tool_name)")}), method="tools/call") == "Allow"


def test_expressions_see_the_whole_request() -> None:
    text = (
        "request.method == 'POST' && request.path == '/mcp?a=b' && request.url_path == '/mcp' && request.host == 'h:1'"
        " && request.headers['x-a'] == 'B' && request.time.getFullYear() == 2026 && request.mcp.arguments.amount < 5"
    )
    question = {
        "http": {"path": "/mcp?a=b", "host": "h:1", "headers": {"X-A": "B"}},
        "time": "2026-01-01T00:00:00Z",
        "arguments": {"amount": 3},
    }
    assert verdict(guarded({"authorization": cel(text)}), tool="x", **question) == "Allow"
    assert (
        verdict(guarded({"authorization": cel(text)}), tool="x", **{**question, "arguments": {"amount": 7}}) == "Deny"
    )


def test_http_matchers_and_the_base_set_are_anded() -> None:
    objects = guarded({"authorization": {**mcp(calls("x"), **BASE), "headers": [{"name": "x-env", "value": "prod"}]}})
    for method in ("initialize", "tools/call"):
        assert verdict(objects, method=method, tool="x") == "Deny"
        assert verdict(objects, method=method, tool="x", http={"headers": {"X-ENV": "prod"}}) == "Allow"


@pytest.mark.parametrize(
    ("category", "method", "expected"),
    [
        ("tools", "tools/call", "Allow"),
        ("tools", "tools/list", "Allow"),
        ("tools", "tools", "Deny"),
        ("tools", "toolsets/list", "Deny"),
        ("tools", "Tools/call", "Deny"),
        ("prompts", "prompts/get", "Allow"),
        ("resources", "resources/templates/list", "Allow"),
        ("resources", "prompts/get", "Deny"),
    ],
)
def test_a_category_is_its_name_and_a_slash(category: str, method: str, expected: str) -> None:
    assert verdict(guarded({"authorization": mcp(category)}), method=method) == expected


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("initialize", "Allow"),
        ("tools/list", "Allow"),
        ("ping", "Allow"),
        ("completion/complete", "Allow"),
        ("logging/setLevel", "Allow"),
        ("notifications/initialized", "Allow"),
        ("prompts/list", "Deny"),
        ("resources/list", "Deny"),
        ("tools/call", "Deny"),
        ("Initialize", "Deny"),
        ("notifications", "Deny"),
        ("pings", "Deny"),
    ],
)
def test_the_base_set(method: str, expected: str) -> None:
    assert verdict(guarded({"authorization": {"type": "Inline", "mcp": BASE}}), method=method) == expected


def test_without_methods_and_base_set_everything_matches() -> None:
    for authorization in ({"type": "Inline"}, {"type": "Inline", "mcp": {}}, mcp()):
        objects = guarded({"authorization": authorization})
        assert verdict(objects, tool="x") == verdict(objects, method="initialize") == "Allow"
        assert verdict(objects, http={"method": "PUT", "path": "/anything"}) == "Allow"


def test_names_uris_and_ids_compare_exactly_and_by_case() -> None:
    objects = guarded(
        {"source": spiffe(), "authorization": mcp(calls("Add"), {"name": "resources/read", "params": ["file:///A"]})}
    )
    assert [verdict(objects, tool=tool) for tool in ("Add", "add", "Add ")] == ["Allow", "Deny", "Deny"]
    reads = [verdict(objects, method="resources/read", uri=uri) for uri in ("file:///A", "file:///a", None)]
    assert reads == ["Allow", "Deny", "Deny"]
    assert verdict(objects, method="resources/read", tool="file:///A") == "Deny"
    assert verdict(objects, tool="Add", caller=AGENT.replace("agent", "Agent")) == "Deny"


def test_prompts_are_named_like_tools() -> None:
    objects = guarded({"authorization": mcp({"name": "prompts/get", "params": ["greet"]})})
    assert [verdict(objects, method="prompts/get", tool=tool) for tool in ("greet", "leave")] == ["Allow", "Deny"]


# docs/semantics.md#ports-are-those-of-the-listener to docs/semantics.md#patterns-match-the-whole-value


@pytest.mark.parametrize(
    ("family", "http", "expected"),
    [
        ({"paths": [{"value": "/a"}]}, {"path": "/a"}, "Allow"),
        ({"paths": [{"value": "/a"}]}, {"path": "/a/b"}, "Allow"),
        ({"paths": [{"value": "/a/"}]}, {"path": "/a"}, "Allow"),
        ({"paths": [{"value": "/a"}]}, {"path": "/ab"}, "Deny"),
        ({"paths": [{"value": "/a"}]}, {"path": "/A"}, "Deny"),
        ({"paths": [{}]}, {"path": "/anything"}, "Allow"),
        ({"paths": [{"value": "/"}]}, {"path": "/anything"}, "Allow"),
        ({"paths": [{"type": "Exact", "value": "/a"}]}, {"path": "/a/"}, "Deny"),
        ({"paths": [{"type": "Exact", "value": "/a"}]}, {"path": "/a?b=c"}, "Allow"),
        ({"paths": [{"type": "RegularExpression", "value": "/a+"}]}, {"path": "/aaa"}, "Allow"),
        ({"paths": [{"type": "RegularExpression", "value": "/a"}]}, {"path": "/ab"}, "Deny"),
        ({"paths": [{"type": "RegularExpression", "value": "a"}]}, {"path": "/a"}, "Deny"),
        ({"paths": [{"value": "/b"}, {"value": "/a"}]}, {"path": "/a"}, "Allow"),
        ({"paths": []}, {"path": "/a"}, "Allow"),
        ({"hosts": ["*.x.org"]}, {"host": "a.x.org"}, "Allow"),
        ({"hosts": ["*.x.org"]}, {"host": "a.b.x.org"}, "Allow"),
        ({"hosts": ["*.x.org"]}, {"host": "x.org"}, "Deny"),
        ({"hosts": ["*.x.org"]}, {"host": "ax.org"}, "Deny"),
        ({"hosts": ["x.org"]}, {"host": "a.x.org"}, "Deny"),
        ({"hosts": ["y.org", "x.org"]}, {"host": "x.org"}, "Allow"),
        ({"hosts": ["x.org"]}, {}, "Deny"),
        ({"hosts": ["x.org"]}, {"host": "X.org:8443"}, "Allow"),
        ({"hosts": []}, {}, "Allow"),
        ({"ports": [8080]}, {}, "Allow"),
        ({"ports": [80]}, {}, "Deny"),
        ({"ports": [80]}, {"host": "x.org:80"}, "Deny"),
        ({"methods": ["GET", "POST"]}, {}, "Allow"),
        ({"methods": ["GET"]}, {}, "Deny"),
        ({"methods": ["GET"]}, {"method": "get"}, "Deny"),
        ({"headers": [{"name": "X-A", "value": "b"}]}, {"headers": {"x-a": "b"}}, "Allow"),
        ({"headers": [{"name": "X-A", "value": "b"}]}, {"headers": {"x-a": "B"}}, "Deny"),
        (
            {"headers": [{"name": "x-a", "value": "b"}, {"name": "x-c", "value": "d"}]},
            {"headers": {"x-a": "b"}},
            "Deny",
        ),
        (
            {"headers": [{"type": "RegularExpression", "name": "x-a", "value": "b+"}]},
            {"headers": {"x-a": "bb"}},
            "Allow",
        ),
        ({"headers": [{"type": "RegularExpression", "name": "x-a", "value": "b"}]}, {"headers": {"x-a": "bb"}}, "Deny"),
        ({"paths": [{"value": "/a"}], "methods": ["GET"]}, {"path": "/a"}, "Deny"),
    ],
)
def test_http_matchers(family: Object, http: Object, expected: str) -> None:
    assert verdict(guarded({"authorization": {"type": "Inline", **family}}), tool="x", http=http) == expected


def test_the_port_is_the_listeners() -> None:
    objects = [
        gateway("prod-gateway", "web", "tls"),
        backend(),
        v1("p", on_gateway(), {"authorization": {"type": "Inline", "ports": [8081]}}),
    ]
    assert [verdict(objects, listener=listener, tool="x") for listener in ("web", "tls")] == ["Deny", "Allow"]


# docs/semantics.md#one-listener-goes-without-saying to docs/semantics.md#a-service-sees-gateway-policies-only


def test_a_policy_on_a_listener_guards_that_listener() -> None:
    objects = [gateway("prod-gateway", "web", "tls"), backend(), v1("p", on_gateway(section="tls"), NOBODY_HERE)]
    assert [verdict(objects, listener=listener, tool="x") for listener in ("web", "tls")] == ["Allow", "Deny"]


def test_the_only_listener_need_not_be_named_and_a_missing_section_is_a_missing_target() -> None:
    assert verdict([gateway(), backend(), v1("p", on_gateway(section="web"), NOBODY_HERE)], tool="x") == "Deny"
    assert verdict([gateway(), backend(), v1("p", on_gateway(section="wbe"), NOBODY_HERE)], tool="x") == "Allow"


def test_the_base_set_holds_on_exactly_the_backends_path() -> None:
    rule = {"authorization": {"type": "Inline", "mcp": BASE}}
    for mcp_path in ({}, {"path": "/v1/mcp"}):
        objects = [gateway(), backend(**mcp_path), v1("p", on_gateway(), rule)]
        mcp_endpoint = mcp_path.get("path", "/mcp")
        session = {"headers": {"mcp-session-id": "s"}}
        assert verdict(objects, http={"method": "GET"}) == "Allow"
        assert verdict(objects, http={"method": "DELETE", **session}) == "Allow"
        for path in (f"{mcp_endpoint}/", f"{mcp_endpoint}x", "/", mcp_endpoint.upper()):
            assert verdict(objects, http={"method": "GET", "path": path}) == "Deny"
            assert verdict(objects, http={"method": "DELETE", "path": path, **session}) == "Deny"


def test_a_call_sent_by_get_is_not_in_the_base_set() -> None:
    assert (
        verdict(guarded({"authorization": {"type": "Inline", "mcp": BASE}}), tool="x", http={"method": "GET"}) == "Deny"
    )


@pytest.mark.parametrize("group", [PROTOTYPE, NETWORKING])
@pytest.mark.parametrize("named", [PROTOTYPE, NETWORKING])
def test_a_target_reaches_a_backend_of_its_own_group_only(group: str, named: str) -> None:
    objects = [gateway(), backend(group=group), v1("p", on_backend(group=named), NOBODY_HERE)]
    assert verdict(objects, tool="x") == ("Deny" if group == named else "Allow")


def test_a_service_sees_gateway_policies_only() -> None:
    service = manifest("v1", "Service", "payment-service", {"ports": [{"port": 80}]})
    policies = [v1("g", on_gateway(), ANY), v1("b", on_backend(), NOBODY_HERE)]
    got = asked([gateway(), backend(), service, *policies], backend="Service/prod/payment-service", tool="x")
    assert (got["verdict"], got["evaluated"]) == ("Allow", ["XAccessPolicy/prod/g"])


# docs/semantics.md#five-policies-per-target


def test_a_target_takes_five_policies_and_keeps_the_senior_ones() -> None:
    crowd = [v1(f"p{number}", on_gateway(), ANY if number < 5 else NOBODY_HERE) for number in range(7)]
    got = asked([gateway(), backend(), *reversed(crowd)], tool="x")
    assert (got["verdict"], [reference[-1] for reference in got["evaluated"]]) == ("Allow", list("01234"))


def test_sections_are_not_told_apart_and_invalid_policies_count() -> None:
    crowd = [v1(f"p{number}", on_gateway(section="tls"), ANY, **({"typo": 1} if number else {})) for number in range(5)]
    objects = [gateway("prod-gateway", "web", "tls"), backend(), *crowd, v1("p9", on_gateway(), NOBODY_HERE)]
    assert asked(objects, listener="web", tool="x")["evaluated"] == []


def test_a_policy_over_the_limit_on_one_target_is_rejected_on_all() -> None:
    crowd = [v1(f"p{number}", on_gateway("other"), ANY) for number in range(5)]
    both = v1("z", [on_gateway(), on_gateway("other")], NOBODY_HERE)
    assert verdict([gateway(), gateway("other"), backend(), *crowd, both], tool="x") == "Allow"
    assert verdict([gateway(), gateway("other"), backend(), *crowd[1:], both], tool="x") == "Deny"


def test_a_target_named_twice_by_one_policy_counts_once() -> None:
    twice = [on_gateway(), on_gateway(section="web")]
    crowd = [v1(f"p{number}", twice, ANY) for number in range(5)]
    assert len(asked([gateway(), backend(), *crowd], tool="x")["evaluated"]) == 5


def test_a_target_takes_one_policy_with_action_external_auth() -> None:
    asking = [v1(name, on_gateway(), ANY, action="ExternalAuth") for name in ("a", "b")]
    got = asked([gateway(), backend(), *asking], tool="x", externalAuth={"XAccessPolicy/prod/a": "Allow"})
    assert (got["verdict"], got["evaluated"]) == ("Allow", ["XAccessPolicy/prod/a"])


# docs/semantics.md#an-invalid-policy-closes-its-targets


@pytest.mark.parametrize(
    "policy",
    [
        v1("p", on_gateway(), ANY, typo=True),
        v1("p", on_gateway(), ANY, action="Deny"),
        v1("p", on_gateway(), ANY, action="ExternalAuth", externalAuth=None),
        v1("p", on_gateway(), {"source": spiffe("spiffe://Cluster.local/x")}),
        v1("p", on_gateway(), ANY, {"authorization": cel("1 + 1")}),
        v1("p", on_gateway(), ANY, {"authorization": cel("request.path")}),
        v1("p", on_gateway(), ANY, {"authorization": cel("request.mcp.tool_name ==")}),
        v1("p", on_gateway(), ANY, {"authorization": cel("request.user == 'me'")}),
        v1("p", on_gateway(), ANY, BAD_PATH),
        v1("p", on_gateway(), ANY, BAD_HEADER),
        v1("p", [on_gateway(), on_backend()], ANY),
        v0("p", on_gateway()),
        {**v0("p", on_gateway(), ANY), "apiVersion": f"{NETWORKING}/v1beta1"},
    ],
)  # fmt: skip
def test_an_invalid_policy_denies_on_its_target(policy: Object) -> None:
    got = asked([gateway(), backend(), policy], tool="x")
    assert (got["verdict"], got["level"], got["evaluated"]) == ("Deny", "Gateway", ["XAccessPolicy/prod/p"])
    assert got["trace"][-1]["note"]


# docs/semantics.md#empty-sources-and-params-are-absent to docs/semantics.md#tool-names-may-have-128-characters


@pytest.mark.parametrize("action", ["Allow", "ExternalAuth"])
def test_without_rules_every_request_matches(action: str) -> None:
    objects = guarded(rules=None, action=action)
    for question in ({"tool": "x"}, {"method": "initialize"}, {"http": {"method": "PUT", "path": "/x"}}):
        assert verdict(objects, caller=None, **question) == ("Allow" if action == "Allow" else "Deny")


def test_an_empty_source_matches_every_caller_and_empty_params_every_name() -> None:
    assert verdict(guarded({"source": {}}), caller=None, tool="x") == "Allow"
    assert verdict(guarded({"authorization": mcp({"name": "tools/call", "params": []})}), tool="x") == "Allow"
    assert verdict(guarded({"source": None, "authorization": None}), caller=None, tool="x") == "Allow"


def test_a_tools_name_may_be_128_characters_long() -> None:
    objects = guarded({"authorization": mcp(calls("x" * 128))})
    assert verdict(objects, tool="x" * 128) == "Allow"
    assert verdict(guarded({"authorization": mcp(calls("x" * 129))}), tool="x" * 129) == "Deny"
    loaded = snapshot(objects)
    policy = next(resource for resource in loaded if resource.kind == "XAccessPolicy")
    assert [(problem.code, str(problem.severity)) for problem in admission_problems(loaded, policy)] == [
        ("TW109", "warning")
    ]


# docs/semantics.md#messages-that-cannot-be-read-are-denied


def test_a_message_of_the_wrong_content_type_is_denied_where_any_policy_guards() -> None:
    text = {"headers": {"Content-Type": "text/plain"}}
    objects = guarded(rules=None)
    assert verdict(objects, tool="x", http=text) == "Deny"
    assert verdict(objects, tool="x", http={"headers": {"content-type": "application/json; charset=utf-8"}}) == "Allow"
    assert verdict([gateway(), backend()], tool="x", http=text) == "Allow"
    behind = asked([gateway(), backend(), v1("b", on_backend(), rules=None)], tool="x", http=text)
    assert (behind["verdict"], behind["level"]) == ("Deny", "Backend")


# docs/semantics.md#the-stricter-reading


def test_v0alpha0_an_authorizer_is_asked_about_everything_of_its_caller() -> None:
    objects = v0_guarded({"source": sa(), "authorization": EXTERNAL})
    answers = {"externalAuth": {"XAccessPolicy/prod/p": "Allow"}}
    for question in ({"tool": "x"}, {"method": "initialize"}, {"http": {"method": "GET"}}):
        assert verdict(objects, **question) == "Deny"
        assert verdict(objects, **question, **answers) == "Allow"
        assert verdict(objects, **question, externalAuth={"XAccessPolicy/prod/p": "Deny"}) == "Deny"
    assert verdict(objects, caller=OTHER, tool="x", **answers) == "Deny"
    assert verdict(objects, http={"method": "PUT"}, **answers) == "Deny"


def test_v0alpha0_an_authorizer_beside_other_rules_of_its_caller_must_agree_with_one_of_them() -> None:
    objects = v0_guarded(
        {"source": sa(), "authorization": EXTERNAL}, {"source": spiffe(), "authorization": inline("x")}
    )
    answers = {"externalAuth": {"XAccessPolicy/prod/p": "Allow"}}
    assert [verdict(objects, tool=tool, **answers) for tool in "xy"] == ["Allow", "Deny"]
    assert [verdict(objects, tool=tool) for tool in "xy"] == ["Deny", "Deny"]


def test_v0alpha0_an_authorizer_of_one_caller_does_not_concern_another() -> None:
    objects = v0_guarded(
        {"source": sa("other"), "authorization": EXTERNAL}, {"source": sa(), "authorization": inline("x")}
    )
    assert verdict(objects, tool="x") == "Allow"
    assert verdict(objects, caller=OTHER, tool="x") == "Deny"
    assert verdict(objects, caller=OTHER, tool="y", externalAuth={"XAccessPolicy/prod/p": "Allow"}) == "Allow"


def test_an_empty_list_of_rules_allows_nothing_and_asks_about_everything() -> None:
    assert verdict(guarded(), tool="x") == "Deny"
    assert verdict(guarded(action="ExternalAuth"), tool="x") == "Deny"
    assert verdict(guarded(action="ExternalAuth"), tool="x", externalAuth={"XAccessPolicy/prod/p": "Allow"}) == "Allow"


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ({}, ["Allow", "Deny", "Deny"]),
        ({"methods": [{"name": "tools"}]}, ["Allow", "Deny", "Deny"]),
        ({"methods": [calls("get_x")]}, ["Allow", "Deny", "Deny"]),
        ({"methods": [calls("set_x")]}, ["Deny", "Deny", "Deny"]),
        ({"methods": [{"name": "tools/list"}]}, ["Deny", "Deny", "Deny"]),
        (BASE, ["Deny", "Deny", "Deny"]),
    ],
)
def test_mcp_beside_an_expression_both_must_match(methods: Object, expected: list[str]) -> None:
    objects = guarded({"authorization": cel("request.mcp.tool_name.startsWith('get')", mcp=methods)})
    questions: list[Object] = [{"tool": "get_x"}, {"tool": "set_x"}, {"method": "tools/list"}]
    assert [verdict(objects, **question) for question in questions] == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"type": "SPIFFE"}, "Deny"),
        ({"type": "SPIFFE", "serviceAccount": {"name": "agent"}}, "Deny"),
        ({"type": "ServiceAccount", "spiffe": AGENT}, "Deny"),
        ({"spiffe": AGENT}, "Allow"),
        ({"spiffe": OTHER}, "Deny"),
        ({"serviceAccount": {"name": "agent"}}, "Allow"),
        ({"type": "SPIFFE", "spiffe": AGENT, "serviceAccount": {"name": "agent"}}, "Allow"),
        ({"type": "SPIFFE", "spiffe": AGENT, "serviceAccount": {"name": "other"}}, "Deny"),
        ({"type": "ServiceAccount", "serviceAccount": {"name": "agent", "namespace": ""}}, "Allow"),
        ({"type": "ServiceAccount", "serviceAccount": {"name": "agent", "namespace": "other"}}, "Deny"),
    ],
)
def test_a_source_that_contradicts_itself_matches_no_caller(source: Object, expected: str) -> None:
    assert verdict(guarded({"source": source}), tool="x") == expected
    assert verdict(guarded({"source": source}), caller=None, tool="x") == "Deny"


# Authorizers (docs/semantics.md#external-authorization-has-no-rank-of-its-own)


def test_an_authorizer_is_asked_only_about_what_its_rules_match() -> None:
    objects = guarded({"source": sa(), "authorization": mcp(calls("pay"))}, action="ExternalAuth")
    assert verdict(objects, tool="look") == verdict(objects, caller=OTHER, tool="pay") == "Allow"
    assert verdict(objects, tool="pay") == "Deny"
    assert verdict(objects, tool="pay", externalAuth={"XAccessPolicy/prod/p": "Deny"}) == "Deny"
    assert verdict(objects, tool="pay", externalAuth={"XAccessPolicy/prod/p": "Allow"}) == "Allow"


def test_an_authorizers_allow_does_not_replace_the_other_policies() -> None:
    objects = [*guarded(rules=None, action="ExternalAuth"), v1("q", on_gateway(), NOBODY_HERE)]
    got = asked(objects, tool="x", externalAuth={"XAccessPolicy/prod/p": "Allow"})
    assert (got["verdict"], got["decidedBy"][0]["policy"]) == ("Deny", "XAccessPolicy/prod/q")


def test_the_one_form_of_a_policy_names_its_authorizer() -> None:
    policies = [
        v1("a", on_gateway(), action="ExternalAuth"),
        v1("b", on_gateway(), ANY),
        v0("c", on_gateway(), {"source": sa(), "authorization": EXTERNAL}),
    ]
    tool_model = model(snapshot([gateway(), *policies]))
    authorizers = [tool_model.policy(resource).authorizer for resource in tool_model.resources]
    assert [authorizer["backendRef"]["name"] if authorizer else None for authorizer in authorizers] == [
        "authorizer",
        None,
        "authorizer",
    ]
