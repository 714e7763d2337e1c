"""`test --engine envoy` observes settings on requests (docs/policy-tests.md#output): a timeout times out, a token is
demanded, and the loser's value is not seen."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from tests import ROOT
from tests.engines.test_envoy_settings import headers, jwt, rules, sha
from tests.randomness import seeds
from tests.reference import gateway as reference
from tests.worlds.gateway_settings import PLAIN, Object, gateway, policy, route, secret, service, to
from tierwall.core.protocols import EngineReply
from tierwall.engines.envoy.config.settings.compiler import BACKEND_FIELDS
from tierwall.engines.envoy.config.settings.mcp_rules import MessageFilters
from tierwall.gateway.detail import Setting
from tierwall.gateway.model.fields import PROFILES
from tierwall.policytest.run import CaseResult, ask_engine, run
from tierwall.policytest.suite import PolicyCase, PolicySuite, suites
from tierwall.resources.load import load_objects
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.envoy import Envoy

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]


def described(**entries: str) -> Object:
    """A descriptor with these expressions."""
    return {"entries": [{"name": name, "expression": text} for name, text in entries.items()]}


# For each field a value that loses, and one that wins.
VALUES: dict[str, tuple[Any, Any]] = {
    "traffic.timeouts": ({"request": "40s"}, {"request": "150ms"}),
    "traffic.retry": ({"attempts": 1, "codes": [500]}, {"attempts": 2, "codes": [502], "backoff": "5ms"}),
    "traffic.headerModifiers.request": (headers(x_a="lost"), {"add": [{"name": "X-B", "value": "50%"}]}),
    "traffic.headerModifiers.response": (headers(x_a="lost"), {"remove": ["x-a", "x-c"]}),
    "traffic.directResponse": ({"status": 410}, {"status": 418, "body": "tea"}),
    "traffic.cors": ({"allowOrigins": ["*"]}, {"allowOrigins": ["https://*.example"], "maxAge": 7}),
    "traffic.csrf": ({"additionalOrigins": ["https://a.example"]}, {"additionalOrigins": ["https://b.example"]}),
    "traffic.buffer": ({"request": {"maxBytes": "2Ki"}}, {"request": {"maxBytes": "1Ki"}}),
    "traffic.delay": ({"duration": "1100ms"}, {"duration": "550ms"}),
    "traffic.rateLimit.local": ([{"requests": 9, "unit": "Hours"}], [{"requests": 3, "burst": 2, "unit": "Hours"}]),
    "traffic.jwtAuthentication": (jwt(), jwt(location={"queryParameter": {"name": "t"}})),
    "traffic.basicAuthentication": ({"users": [sha("a", "x")]}, {"secretRef": {"name": "users", "key": "list"}}),
    "traffic.apiKeyAuthentication": ({"secretRef": {"name": "old"}}, {"secretRef": {"name": "new"}}),
    "traffic.extAuth": (
        {"backendRef": {"name": "one", "port": 80}, "http": {}},
        {"backendRef": {"name": "guard", "port": 80}, "http": {"path": "'/ask'"}},
    ),
}
VALUES |= {
    "traffic.rateLimit.global": (
        {"backendRef": {"name": "one", "port": 80}, "domain": "d", "descriptors": [described(who="'all'")]},
        {"backendRef": {"name": "one", "port": 80}, "domain": "d", "descriptors": [described(who="'you'")]},
    ),
    "traffic.extProc": (
        {"backendRef": {"name": "guard", "port": 80}},
        {
            "backendRef": {"name": "guard", "port": 80},
            "processingOptions": {"responseBodyMode": "Buffered", "responseHeaderMode": "Skip"},
        },
    ),
}
PLACE = {"gateway": "shop/edge", "listener": "http", "route": "HTTPRoute/shop/web", "rule": "a"}


def traffic(values: Mapping[str, Any]) -> Object:
    """A traffic section with these fields."""
    out: Object = {}
    for path, value in values.items():
        _, outer, *inner = path.split(".")
        if inner:
            out.setdefault(outer, {})[inner[0]] = value
        else:
            out[outer] = value
    return out


OBJECTS = [
    *PLAIN,
    service("guard"),
    secret("users", list=sha("b", "y")),
    secret("old", first="k1"),
    secret("new", first="k2"),
    policy("lost", "Gateway/edge", traffic=traffic({path: values[0] for path, values in VALUES.items()})),
    policy("won", "HTTPRoute/web", section="a", traffic=traffic({path: values[1] for path, values in VALUES.items()})),
    policy("no", "Gateway/edge", traffic={"authorization": rules("request.path == '/no'", action="Deny")}),
    policy(
        "get", "HTTPRoute/web", traffic={"authorization": rules("request.method == 'GET'", "'x' in request.headers")}
    ),
]


def suite(objects: list[Object], cases: list[tuple[Object, Object]]) -> PolicySuite:
    """Cases of a question and its expectation, against these objects."""
    made = tuple(PolicyCase(str(number), "gateway", asked, want, ()) for number, (asked, want) in enumerate(cases))
    resource = Resource("", "v1", "PolicyTest", "", "t", {})
    return PolicySuite("", "", resource, Snapshot.of(load_objects(objects)), {}, made)


def results(objects: list[Object], cases: list[tuple[Object, Object]]) -> list[CaseResult]:
    return list(run([suite(objects, cases)], Envoy()))


def test_every_setting_is_observed_and_the_loser_is_not_seen() -> None:
    won = {path: {"value": values[1], "from": "AgentgatewayPolicy/shop/won"} for path, values in VALUES.items()}
    lost = {path: {"value": values[0], "from": "AgentgatewayPolicy/shop/lost"} for path, values in VALUES.items()}
    both = [f"AgentgatewayPolicy/shop/{name}" for name in ("no", "get")]
    elsewhere = {"gateway": "shop/edge", "listener": "http"}
    cases: list[tuple[Object, Object]] = [
        (PLACE, {"effective": {**won, "traffic.authorization": {"from": both}}}),
        ({**PLACE, "rule": 1}, {"effective": lost}),
        (elsewhere, {"effective": {**lost, "traffic.authorization": {"from": both[:1]}}}),
        ({"route": "HTTPRoute/shop/web"}, {"effective": dict.fromkeys(VALUES)}),
        (PLACE, {"effective": lost}),
    ]
    *right, wrong = results(OBJECTS, cases)
    assert [(case.ok, case.mismatches, case.error, case.skipped) for case in right] == [(True, (), "", "")] * 4
    assert wrong.ok is False
    assert len(wrong.mismatches) == 2 * len(VALUES)


def test_what_no_request_shows_is_skipped_with_the_reason() -> None:
    objects = [
        *PLAIN,
        policy("p", "Gateway/edge", traffic={"hostRewrite": {"mode": "Auto"}, "timeouts": {"request": "9s"}}),
        policy("q", "HTTPRoute/web", traffic={"rateLimit": {"local": [{"requests": 5000, "unit": "Hours"}]}}),
        policy("r", "HTTPRoute/web", section="a", traffic={"delay": {"duration": "1h"}}),
    ]
    seen = {"traffic.timeouts": {"value": {"request": "9s"}}}
    rewritten = {"traffic.hostRewrite": {"value": {"mode": "Auto"}}}
    cases: list[tuple[Object, Object]] = [
        (PLACE, {"effective": seen}),
        (PLACE, {"effective": {**seen, **rewritten}}),
        (PLACE, {"effective": {"traffic.timeouts": None, **rewritten}}),
        (PLACE, {"effective": {"traffic.rateLimit.local": {}}}),
        (PLACE, {"effective": {"traffic.delay": {}}}),
        (PLACE, {"conflicts": []}),
    ]
    got = results(objects, cases)
    assert [case.ok for case in got] == [True, None, False, None, None, None]
    assert [case.skipped.removeprefix("not testable here: ") for case in got] == [
        "",
        "traffic.hostRewrite: no request shows it",
        "",
        "traffic.rateLimit.local: the limit is larger than the 300 requests of a test",
        "traffic.delay: the delay is too long for a test",
        "conflicts: Envoy shows which settings are in force, not which policies conflict",
    ]


def test_what_a_rule_sets_by_itself_is_not_asked() -> None:
    rule = {"name": "a", "timeouts": {"request": "3s"}, "backendRefs": to("one")}
    objects = [gateway(), service("one"), route("web", [rule])]
    objects.append(policy("p", "Gateway/edge", traffic={"timeouts": {"request": "9s"}}))
    (got,) = results(objects, [(PLACE, {"effective": {"traffic.timeouts": {"value": {"request": "9s"}}}})])
    assert (got.ok, got.skipped) == (None, "not testable here: traffic.timeouts: the rule has its own `timeouts`")


def test_a_route_for_grpc_is_not_asked() -> None:
    rpc = route("rpc", [{"backendRefs": to("one")}])
    objects = [*PLAIN, {**rpc, "kind": "GRPCRoute"}]
    objects.append(policy("p", "Gateway/edge", traffic={"timeouts": {"request": "9s"}}))
    place = {"gateway": "shop/edge", "listener": "http", "route": "GRPCRoute/shop/rpc", "rule": 0}
    (got,) = results(objects, [(place, {"effective": {"traffic.timeouts": {}}})])
    assert (got.ok, got.skipped) == (None, "not testable here: traffic.timeouts: a test sends plain HTTP, not gRPC")


def test_a_place_that_envoy_closes_is_not_asked() -> None:
    objects = [*PLAIN, policy("p", "Gateway/edge", traffic={"basicAuthentication": {"users": ["a:$2y$05$abc"]}})]
    (got,) = results(objects, [(PLACE, {"effective": {"traffic.basicAuthentication": {}}})])
    assert got.ok is None
    assert "Envoy answers with 500 there" in got.skipped


def test_the_conformance_cases_hold_in_envoy() -> None:
    got = list(run(suites([str(ROOT / "tests/conformance/gateway"), str(ROOT / "examples/gateway")]), Envoy()))
    assert [case for case in got if case.ok is False] == []
    assert sum(case.ok is True for case in got) > 35


def listed(*entries: tuple[str, Object]) -> Object:
    return {"conditional": [{"condition": condition, "policy": value} for condition, value in entries]}


def test_the_entry_of_a_list_is_observed_with_the_request_of_the_case() -> None:
    post, get, header = {"status": 418}, {"status": 410}, {"status": 402}
    answers = listed(
        ("request.method == 'POST' && request.path == '/x'", post), ("request.headers['x-a'] == '1'", header)
    )
    objects = [
        *PLAIN,
        policy("below", "Gateway/edge", traffic={"directResponse": get}),
        policy("list", "HTTPRoute/web", traffic={"directResponse": answers}),
    ]
    posted = {"request.method": "POST", "request.path": "/x", "request.headers": {"x-a": "1"}}
    other = {**posted, "request.path": "/y"}
    neither = {**other, "request.headers": {"x-a": "2"}}

    def wants(value: Object, name: str) -> Object:
        answered = {"value": value, "from": f"AgentgatewayPolicy/shop/{name}"}
        return {"effective": {"traffic.directResponse": answered}}

    cases: list[tuple[Object, Object]] = [
        ({**PLACE, "request": posted}, wants(post, "list")),
        ({**PLACE, "request": other}, wants(header, "list")),
        ({**PLACE, "request": neither}, wants(get, "below")),
        ({**PLACE, "request": neither, "profile": "agentgateway"}, {"effective": {"traffic.directResponse": None}}),
        ({**PLACE, "request": other}, wants(post, "list")),
        ({**PLACE, "request": {"request.method": "POST"}}, wants(get, "below")),
        ({**PLACE, "request": {**posted, "request.host": "a"}}, wants(post, "list")),
        ({**PLACE, "request": {**posted, "request.path": "no path"}}, wants(header, "list")),
    ]
    got = results(objects, cases)
    assert [case.ok for case in got] == [True, True, True, True, False, None, None, None]
    assert [case.skipped.removeprefix("not testable here: traffic.directResponse: ") for case in got[5:]] == [
        "the question does not give request.path, which a condition asks for",
        "a test does not choose `request.host` of its requests",
        "`request.path` is not what a client can send",
    ]


def service_asked(name: str, **more: Any) -> Object:
    return {"backendRef": {"name": name, "port": 80}, **more}


@pytest.mark.parametrize(
    ("field", "first", "second", "below"),
    [
        ("extAuth", *(service_asked("guard", http={"path": f"'/{name}'"}) for name in "abc")),
        ("extProc", service_asked("guard"), service_asked("one"), service_asked("other")),
        (
            "rateLimit",
            *(
                {"global": service_asked("guard", domain=name, descriptors=[described(a="'b'", m="request.method")])}
                for name in "abc"
            ),
        ),
        ("rateLimit", *({"local": [{"requests": number, "unit": "Hours"}]} for number in (2, 4, 6))),
    ],
)
def test_the_entry_of_every_list_is_observed(field: str, first: Object, second: Object, below: Object) -> None:
    objects = [*PLAIN, service("guard"), service("other")]
    entries = listed(("request.headers['x-a'] == '1'", first), ("request.path == '/p'", second))
    objects += [
        policy("below", "Gateway/edge", traffic={field: below}),
        policy("list", "HTTPRoute/web", traffic={field: entries}),
    ]
    (part,) = first if field == "rateLimit" else ("",)
    path = f"traffic.{field}.{part}" if part else f"traffic.{field}"

    def wants(value: Object, name: str) -> Object:
        return {
            "effective": {path: {"value": value[part] if part else value, "from": f"AgentgatewayPolicy/shop/{name}"}}
        }

    cases: list[tuple[Object, Object]] = []
    for given, value, name in (("1", first, "list"), ("2", second, "list")):
        facts = {"request.path": "/p", "request.headers": {"x-a": given}}
        cases.append(({**PLACE, "request": facts}, wants(value, name)))
    neither = {"request.path": "/q", "request.headers": {"x-a": "2"}}
    cases.append(({**PLACE, "request": neither}, wants(below, "below")))
    cases.append(({**PLACE, "request": neither, "profile": "agentgateway"}, {"effective": {path: None}}))
    cases.append(({**PLACE, "request": neither}, wants(first, "list")))
    got = results(objects, cases)
    assert [(case.ok, case.skipped, case.error) for case in got] == [(True, "", "")] * 4 + [(False, "", "")]


def network(name: str, *expressions: str, action: str = "Allow", port: int = 0) -> Object:
    made = policy(name, "Gateway/edge", frontend={"networkAuthorization": rules(*expressions, action=action)})
    if port:
        made["spec"]["targetRefs"][0]["port"] = port
    return made


def test_rules_about_connections_are_observed_by_the_address_of_the_client() -> None:
    objects = [
        *PLAIN,
        network("inside", 'cidr("10.0.0.0/8").containsIP(source.address)', 'source.address == "2001:db8::5"'),
        network("not-that", 'source.address == "10.9.9.9"', "a_{{b}}", action="Deny"),
        network("here", 'source.address.startsWith("10.1.")', action="Require", port=8080),
        network("elsewhere", 'source.address.startsWith("10.2.")', action="Require", port=9090),
    ]
    names = [f"AgentgatewayPolicy/shop/{name}" for name in ("inside", "not-that", "here", "elsewhere")]

    def wants(*from_: str) -> Object:
        return {"effective": {"frontend.networkAuthorization": {"from": list(from_)}}}

    nowhere = {"route": "HTTPRoute/shop/web"}
    cases: list[tuple[Object, Object]] = [
        (PLACE, wants(*names[:3])),
        ({"gateway": "shop/edge"}, wants(*names[:2])),
        (nowhere, {"effective": {"frontend.networkAuthorization": None}}),
        (PLACE, wants(*names[:2])),
        (PLACE, wants(*names)),
        (nowhere, wants(names[0])),
    ]
    got = results(objects, cases)
    assert [(case.ok, case.skipped, case.error) for case in got] == [(True, "", "")] * 3 + [(False, "", "")] * 3


def test_rules_about_connections_that_envoy_does_not_have_are_not_asked() -> None:
    (got,) = results(
        [*PLAIN, network("p", "source.port == 1")], [(PLACE, {"effective": {"frontend.networkAuthorization": {}}})]
    )
    assert got.ok is None
    assert "Envoy answers with 500 there" in got.skipped


def test_a_field_that_a_test_does_not_observe_says_why() -> None:
    rule = {"policy": {"matchExpressions": ["source.address == '127.0.0.1'"]}}
    changes = listed(("request.method == 'GET'", {"request": {"set": [{"name": "x-a", "value": "'1'"}]}}))
    objects = [
        *PLAIN,
        policy("f", "Gateway/edge", frontend={"networkAuthorization": rule, "accessLog": {"filter": "true"}}),
        policy("b", "HTTPRoute/web", backend={"mcp": {"authorization": rule}}, traffic={"transformation": changes}),
    ]
    fields = {
        "frontend.accessLog": "a test has no collector of records",
        "backend.mcp.authorization": "the question names no MCP server",
        "traffic.transformation": "no request shows it",
    }
    asked = {**PLACE, "request": {"request.method": "GET"}}
    got = results(objects, [(asked, {"effective": {path: {}}}) for path in fields])
    assert [(case.ok, case.skipped) for case in got] == [
        (None, f"not testable here: {path}: {why}") for path, why in fields.items()
    ]


# Settings that one request or two tell apart.
CHOICES: dict[str, tuple[Any, ...]] = {
    "traffic.timeouts": ({"request": "40s"}, {"request": "50s"}, {"request": "120ms"}),
    "traffic.headerModifiers.request": (headers(x_a="1"), headers(x_a="2"), {"remove": ["x-a"]}),
    "traffic.headerModifiers.response": (headers(x_b="1"), headers(x_c="2")),
    "traffic.directResponse": ({"status": 410}, {"status": 418, "body": "tea"}),
    "traffic.csrf": ({}, {"additionalOrigins": ["https://b.example"]}),
    "traffic.buffer": ({"request": {"maxBytes": "200"}}, {"request": {"maxBytes": "300"}}),
    "traffic.rateLimit.local": ([{"requests": 2, "unit": "Hours"}], [{"requests": 4, "unit": "Hours"}]),
    "traffic.jwtAuthentication": (jwt(), jwt(mode="Optional")),
    "traffic.authorization": (
        rules("request.path == '/a'"),
        rules("request.method == 'POST'", action="Deny"),
        rules("request.headers['x-id'] == '1'", action="Require"),
    ),
}
TARGETS = (
    *(("Gateway/edge", section) for section in (None, "http")),
    *(("ListenerSet/more", section) for section in (None, "http")),
    *(("HTTPRoute/web", section) for section in (None, "a")),
)


def world(namespace: str, random: Random) -> list[Object]:
    """Random policies on the levels of one place, in a namespace of their own."""
    # Its listener has the name of the Gateway's.
    added = {"parentRef": {"name": "edge"}, "listeners": [{"name": "http", "port": 8081, "protocol": "HTTP"}]}
    more = {**gateway(), "kind": "ListenerSet", "metadata": {"name": "more"}, "spec": added}
    edge = gateway()
    edge["spec"]["allowedListeners"] = {"namespaces": {"from": "Same"}}
    objects = [edge, *PLAIN[1:], more]
    for number in range(random.randint(2, 7)):
        target, section = random.choice(TARGETS)
        paths = random.sample(list(CHOICES), random.randint(1, 4))
        settings = traffic({path: random.choice(CHOICES[path]) for path in paths})
        inheritance = random.choice((None, None, "Default", "Override"))
        made = policy(f"p{number}", target, section=section, inheritance=inheritance, traffic=settings)
        age = f"2024-01-0{random.randint(1, 3)}T00:00:00Z"
        objects.append({**made, "metadata": {**made["metadata"], "creationTimestamp": age}})
    return [{**item, "metadata": {"labels": {}, **item["metadata"], "namespace": namespace}} for item in objects]


def test_envoy_obeys_random_merges_as_the_reference_has_them() -> None:
    """All worlds are in one Envoy, each in a namespace of its own."""
    objects: list[Object] = []
    asked: list[Object] = []
    for seed in seeds(6):
        namespace = f"w{seed}"
        objects += world(namespace, Random(seed))
        place = {"gateway": f"{namespace}/edge", "listener": "http", "route": f"HTTPRoute/{namespace}/web"}
        asked += [{**place, "rule": rule, "profile": profile} for rule in ("a", 1) for profile in PROFILES]
        # The other listener is asked about the rule with more levels.
        on_set = {**place, "listenerSet": f"{namespace}/more", "rule": "a"}
        asked += [{**on_set, "profile": profile} for profile in PROFILES]
    replies = list(ask_engine(suite(objects, [(question, {}) for question in asked]), Envoy()))
    compared = 0
    for question, reply in zip(asked, replies, strict=True):
        wanted = reference.merge(objects, {**question}, question["profile"])
        for path in CHOICES:
            assert reply.error == ""
            if path not in reply.unasked:
                assert observed(reply, path) == (wanted[path].setting if path in wanted else None)
                compared += 1
    assert compared > 0.9 * len(asked) * len(CHOICES)


def observed(reply: EngineReply, path: str) -> Object | None:
    assert reply.answer is not None
    setting: Setting | None = reply.answer.detail.effective.get(path)
    return {"value": setting.value, "from": setting.written_from} if setting is not None else None


# ---- Rules about the items of MCP servers.
ITEM_RULES = (
    rules("mcp.tool.name == 'add'"),
    rules("mcp.tool.name.startsWith('rm')", action="Deny"),
    rules("has(mcp.tool) || has(mcp.prompt)", action="Require"),
    rules("request.headers['x-team'] == 'a'", "mcp.prompt.name == 'hello'"),
    rules("mcp.resource.name == 'file:///a' && mcp.resource.target == 'tools'"),
)
SERVER_TARGETS = ("Gateway/edge", "HTTPRoute/web", "HTTPRoute/web#a", "AgentgatewayBackend/tools")
MCP_RULES = "backend.mcp.authorization"


def mcp_world(namespace: str, random: Random) -> list[Object]:
    """Random rules on the levels of an MCP server, some inline, beside settings that would hide them."""
    inline: Object = {"tls": {"sni": "tools.example"}}
    if random.random() < 0.4:
        inline["mcp"] = {"authorization": random.choice(ITEM_RULES)}
    static = {"host": "tools.example", "port": 80}
    spec = {"mcp": {"targets": [{"name": "tools", "static": static}]}, "policies": inline}
    version = "agentgateway.dev/v1alpha1"
    server = {"apiVersion": version, "kind": "AgentgatewayBackend", "metadata": {"name": "tools"}, "spec": spec}
    objects: list[Object] = [*PLAIN, server]
    for number in range(random.randint(1, 4)):
        target, _, section = random.choice(SERVER_TARGETS).partition("#")
        settings = {"mcp": {"authorization": random.choice(ITEM_RULES)}}
        objects.append(policy(f"p{number}", target, section=section or None, backend=settings))
    return [{**item, "metadata": {"labels": {}, **item["metadata"], "namespace": namespace}} for item in objects]


def place_of_server(namespace: str, profile: str = "docs") -> Object:
    place = {"gateway": f"{namespace}/edge", "listener": "http", "route": f"HTTPRoute/{namespace}/web", "rule": "a"}
    return {**place, "backend": f"AgentgatewayBackend/{namespace}/tools", "backendSection": "tools", "profile": profile}


def test_rules_about_items_are_observed_on_calls() -> None:
    objects: list[Object] = []
    asked: list[Object] = []
    for seed in seeds(6):
        objects += mcp_world(f"m{seed}", Random(seed))
        asked += [place_of_server(f"m{seed}", profile) for profile in PROFILES]
    replies = list(ask_engine(suite(objects, [(question, {}) for question in asked]), Envoy()))
    for question, reply in zip(asked, replies, strict=True):
        wanted = reference.merge(objects, {**question}, question["profile"])
        assert (reply.error, MCP_RULES in reply.unasked) == ("", False), reply
        assert observed(reply, MCP_RULES) == (wanted[MCP_RULES].setting if MCP_RULES in wanted else None)


def test_rules_about_items_need_a_server() -> None:
    objects = mcp_world("shop", Random(1))
    place = {**place_of_server("shop"), "profile": "docs"}
    without = {key: value for key, value in place.items() if not key.startswith("backend")}
    elsewhere = {**without, "backend": "Service/shop/one"}
    (first, second) = ask_engine(suite(objects, [(question, {}) for question in (without, elsewhere)]), Envoy())
    for reply in (first, second):
        assert reply.unasked[MCP_RULES] == "the question names no MCP server"


def test_a_fault_in_rules_about_items_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = [*mcp_world("shop", Random(1))[:4], policy("p", "AgentgatewayBackend/tools", backend=ONE_RULE)]
    objects[3]["spec"].pop("policies")
    case = (place_of_server("shop"), {"effective": {MCP_RULES: {"from": ["AgentgatewayPolicy/shop/p"]}}})
    assert [result.ok for result in results(objects, [case])] == [True]
    monkeypatch.setitem(BACKEND_FIELDS, MCP_RULES, lambda *_: MessageFilters())
    assert [result.ok for result in results(objects, [case])] == [False]


ONE_RULE = {"mcp": {"authorization": ITEM_RULES[0]}}
