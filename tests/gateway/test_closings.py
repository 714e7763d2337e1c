"""Requests that `run` answers with 500 are named by `check` and `effective`, whatever routes, backends and settings.

`run` says it when it compiles. What the other two say is found without compiling, by the functions that `run` asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pytest

from tests.randomness import SEEDED, seeds
from tests.worlds.gateway_settings import Object, gateway, policy, service
from tests.worlds.tool_objects import manifest
from tierwall.attach.reach import RouteRule, gateway_graph
from tierwall.core.answer import Answer
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.config.closings import rule_closings
from tierwall.engines.envoy.config.compile import compile
from tierwall.engines.envoy.config.delegated_routes import CHANGED, CYCLE, SHARED
from tierwall.engines.envoy.config.findings import envoy_findings
from tierwall.engines.envoy.config.joined_limits import (
    COPIES,
    DIFFERENT,
    DIFFERENT_PATHS,
    FILTERS,
    JUDGED_COPY,
    SEVERAL,
)
from tierwall.engines.envoy.config.options import MAX_PROGRAM_SIZE, EnvoyOptions
from tierwall.engines.envoy.config.route_matches import SEVERAL_PATTERNS
from tierwall.gateway.detail import GatewayDetail
from tierwall.gateway.model.fields import Profile
from tierwall.gateway.model.places import RequestPlace
from tierwall.gateway.question import GatewayQuestion, ask, ask_everywhere
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

API, GATEWAY_API = "agentgateway.dev/v1alpha1", "gateway.networking.k8s.io/v1"
# How closings of routes end where `check` and `effective` say them.
HERE = " where Tierwall serves the Gateway"
NAMES = {
    COPIES,
    DIFFERENT,
    DIFFERENT_PATHS,
    FILTERS,
    JUDGED_COPY,
    SEVERAL,
    "a change of the host",
    "a change of headers",
}
NAMES |= {"backend.auth.location.queryParameter of", "a request of type", "of a backendRef"}
# Parts of rules, whatever their backends.
NAMES |= {"filter ExtensionRef is", "a change of header `", "sessionPersistence", "`exposeHeaders`", "pattern `"}
NAMES |= {SHARED, CHANGED, CYCLE, SEVERAL_PATTERNS}


def rules(*texts: str, action: str = "Allow") -> Object:
    return {"action": action, "policy": {"matchExpressions": list(texts)}}


KEY_SETS = ('{"keys": [{"kty": "oct", "k": "AA"}]}', '{"keys": [{"kty": "EC", "x": "AA", "y": "AA"}]}')
ASKS = {"backendRef": {"name": "one", "port": 80}, "grpc": {}}
# Settings of requests to a backend: what judges them, what changes nothing about that, and what closes.
OF_BACKENDS: tuple[Object, ...] = (
    {"extAuth": ASKS},
    {"extAuth": {**ASKS, "forwardBody": {"maxSize": 10}}},
    {"mcp": {"authorization": rules("mcp.tool.name == 'a'")}},
    {"mcp": {"authorization": rules("request.headers['x'] == 'a'")}},
    {"mcp": {"authorization": rules("request.headers['y'] == 'a'", action="Deny")}},
    *({"auth": {"key": "k", "location": {"queryParameter": {"name": "q"}}}},) * 2,
    {"tcp": {"connectTimeout": "3s"}},
    {"http": {"requestTimeout": "3s"}},
)
OF_MODELS: tuple[Object, ...] = (
    {"ai": {"routes": {"/embed": "Embeddings", "*": "Messages"}}},
    {"ai": {"routes": {"*": "Passthrough"}}},
    {"ai": {"routes": {"/v1/chat/completions": "Completions", "*": "Detect"}}},
    {"ai": {"modelAliases": {"fast": "small"}}},
    {"ai": {"defaults": [{"field": "seed", "value": 1}]}},
    {"ai": {"promptGuard": {"request": [{"regex": {"action": "Reject", "builtins": ["Email"]}}]}}},
)
SET = {"set": [{"name": "x", "value": "y"}]}
OF_ROUTES: tuple[Object, ...] = (
    {"headerModifiers": {"request": SET}},
    {"headerModifiers": {"response": {"remove": ["x"]}}},
    {"headerModifiers": {"request": {}}},
    {"hostRewrite": {"mode": "None"}},
    {"hostRewrite": {"mode": "Auto"}},
    {"timeouts": {"request": "3s"}},
    {"directResponse": {"status": 404}},
    {"directResponse": {"conditional": [{"condition": "request.path == '/a'", "policy": {"status": 404}}]}},
    {"rateLimit": {"local": [{"requests": 5, "unit": "Hours"}]}},
    {"rateLimit": {"local": [{"tokens": 5, "unit": "Hours"}]}},
    {"authorization": rules("request.path == '/a'")},
    {"authorization": rules("source.port == 1")},
    {"extAuth": {**ASKS, "cache": {"ttl": "5m", "key": ["request.path"]}}},
    {
        "jwtAuthentication": {
            "providers": [{"issuer": "i", "jwks": {"inline": '{"keys": [{"kty": "oct", "k": "AA"}]}'}}]
        }
    },
    {"jwtAuthentication": {"providers": [{"issuer": "i", "jwks": {"inline": '{"keys": [{"kty": "EC"}]}'}}]}},
    {"retry": {"attempts": 2, "condition": "true"}},
)
OF_RULES: tuple[Object, ...] = (
    {"type": "RequestHeaderModifier", "requestHeaderModifier": SET},
    {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["x"]}},
    {"type": "RequestHeaderModifier", "requestHeaderModifier": {}},
    {"type": "URLRewrite", "urlRewrite": {"hostname": "other.example"}},
    {"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplaceFullPath", "replaceFullPath": "/x"}}},
    {"type": "RequestRedirect", "requestRedirect": {"hostname": "other.example"}},
)
# What Envoy cannot do for a rule.
UNSUPPORTED: tuple[Object, ...] = (
    {"type": "ExtensionRef", "extensionRef": {"group": "example.org", "kind": "Filter", "name": "x"}},
    {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "Mcp-Name", "value": "x"}]}},
    {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["Content-Length"]}},
    {"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplaceFullPath", "replaceFullPath": "/a b"}}},
    {"type": "CORS", "cors": {"allowOrigins": ["*"], "allowCredentials": True, "exposeHeaders": ["*"]}},
)
PATTERNS = tuple({"type": "RegularExpression", "value": value} for value in ("/[a-c]+", "/.*b", "(/a{500}){500}"))
TARGETS = (("Gateway/edge", None), ("HTTPRoute/web", None), ("HTTPRoute/web", "r0"))
KINDS = (*("joined",) * 6, "server", "server", "host", "model", "chat", "two-models", "unix", "odd")


def backend(dice: Random, name: str, kind: str) -> Object:
    def inline(*values: Object) -> Object:
        return {"policies": dice.choice(values)} if dice.random() < 0.5 else {}

    def target(number: int, host: str = "mcp.example") -> Object:
        static = {"host": host, "port": 80, "path": f"/{number}", **inline(*OF_BACKENDS[-3:])}
        return {"name": f"t{number}", "static": static}

    hosts = (*("mcp.example",) * 12, "not a host", "127.0.0.1")
    specs: dict[str, Any] = {
        "joined": lambda: {"mcp": {"targets": [target(number, dice.choice(hosts)) for number in range(2)]}},
        "server": lambda: {"mcp": {"targets": [target(0)]}},
        "host": lambda: {"static": {"host": "host.example", "port": 80}},
        "model": lambda: {"ai": {"provider": {"openai": {}}}},
        "chat": lambda: {"ai": {"provider": {"anthropic": {"model": "m"}}}},
        "two-models": lambda: {"ai": {"groups": [{"providers": [{"name": n, "openai": {}} for n in ("a", "b")]}]}},
        "unix": lambda: {"static": {"unixPath": "/run/x"}},
        "odd": lambda: {"static": {"host": "a b", "port": 80}},
    }
    is_model = kind in ("model", "chat", "two-models")
    spec = {**specs[kind](), **inline(*(OF_MODELS if is_model else OF_BACKENDS))}
    return manifest(API, "AgentgatewayBackend", name, spec, "shop")


def reference(dice: Random, names: list[str]) -> Object:
    name = dice.choice((*names, "one", "pool"))
    if name == "one":
        return {"name": "one", "port": 80}
    if name == "pool":
        return {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "pool"}
    return {"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": name}


def rule(dice: Random, number: int, names: list[str]) -> Object:
    refs = [reference(dice, names) for _ in range(dice.choice((1, 1, 1, 2)))]
    for ref in refs:
        if dice.random() < 0.1:
            ref["filters"] = [dice.choice(OF_RULES[:5])]
    filters: list[Object] = [dice.choice((*OF_RULES, OF_RULES[4]))] if dice.random() < 0.35 else []
    if not filters and dice.random() < 0.08:
        filters = [dice.choice(UNSUPPORTED)]
    if dice.random() < 0.15:
        filters.append({"type": "RequestMirror", "requestMirror": {"backendRef": reference(dice, names)}})
    if any(each["type"] == "RequestRedirect" for each in filters):
        refs = []
    paths = [dice.choice(PATTERNS) if dice.random() < 0.05 else {"value": f"/{number}"} for _ in range(1, number + 2)]
    out: Object = {"name": f"r{number}", "matches": [{"path": path} for path in paths], "backendRefs": refs}
    if dice.random() < 0.05:
        out["sessionPersistence"] = {"sessionName": "s"}
    return {**out, "filters": filters} if filters else out


def delegating(dice: Random, above: Object, others: Sequence[str]) -> Object:
    """Return the rule with a child in the place of its backends, or beside them."""
    child: Object = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "child"}
    if dice.random() < 0.15:
        child["filters"] = [OF_RULES[0]]
    refs = [child] if dice.random() < 0.8 else [child, reference(dice, list(others))]
    filters = [each for each in above.get("filters", ()) if each["type"] != "RequestRedirect"]
    matches = [{"path": PATTERNS[0]}] if dice.random() < 0.3 else above["matches"]
    return {**above, "matches": matches, "filters": filters, "backendRefs": refs}


def world(dice: Random) -> tuple[list[Object], int]:
    """Return the objects of a world and the number of its rules."""
    kinds = [dice.choice(KINDS) for _ in range(3)]
    names = [f"b{number}" for number in range(len(kinds))]
    count = dice.randint(1, 3)
    values = [rule(dice, number, names) for number in range(count)]
    objects = [gateway(), service("one")]
    if dice.random() < 0.2:
        values[0] = delegating(dice, values[0], names)
        below = [{**rule(dice, number, names), "name": f"c{number}"} for number in range(2)]
        for each in below:
            each["matches"] = [dice.choice(({"path": {"value": "/0/x"}}, {"path": PATTERNS[1]}, {"method": "GET"}))]
        if dice.random() < 0.3:
            below[1] = delegating(dice, below[1], names)
        objects.append(manifest(GATEWAY_API, "HTTPRoute", "child", {"rules": below}, "shop"))
    spec = {"parentRefs": [{"name": "edge"}], "rules": values}
    objects.append(manifest(GATEWAY_API, "HTTPRoute", "web", spec, "shop"))
    objects += [backend(dice, name, kind) for name, kind in zip(names, kinds, strict=True)]
    picker = {"name": "p", "port": {"number": 1}}
    pool = {"selector": {"matchLabels": {"a": "b"}}, "targetPorts": [{"number": 80}], "endpointPickerRef": picker}
    objects.append(manifest("inference.networking.k8s.io/v1", "InferencePool", "pool", pool, "shop"))
    joined = tuple(name for name, kind in zip(names, kinds, strict=True) if kind == "joined")
    for number in range(dice.randint(0, 3)):
        objects.append(random_policy(dice, f"p{number}", names, joined))
    return objects, count


def random_policy(dice: Random, name: str, names: list[str], joined: tuple[str, ...]) -> Object:
    target, section = dice.choice((*TARGETS, *((f"AgentgatewayBackend/{name}", None) for name in names)))
    if not target.startswith("AgentgatewayBackend") and dice.random() < 0.7:
        inheritance = dice.choice((None, None, "Override"))
        return policy(name, target, section=section, inheritance=inheritance, traffic=dice.choice(OF_ROUTES))
    value = dice.choice((*OF_BACKENDS, *OF_MODELS))
    if target.endswith(joined) and not value.keys() & {"ai", "mcp"} and dice.random() < 0.6:
        section = "t0"
    return policy(name, target, section=section, backend=value)


def told(diagnostics: Iterable[Diagnostic], *codes: str) -> set[tuple[str, str]]:
    return {(str(each.reference), str(each.message)) for each in diagnostics if each.code in codes}


def cause(message: str) -> str:
    """The part of a setting that is not enforced, without the consequence."""
    return message.partition("; requests")[0]


def part(message: str) -> str:
    """The same as `effective` says it, which names the object elsewhere."""
    return re.sub(r"` of \S+: ", "`: ", cause(message))


def details(answer: Answer) -> GatewayDetail:
    assert isinstance(answer.detail, GatewayDetail)
    return answer.detail


@pytest.mark.parametrize("profile", ["docs", "agentgateway"])
def test_what_run_closes_is_said_everywhere_and_nothing_else(profile: Profile) -> None:
    seen: set[str] = set()
    for seed in seeds(150):
        objects, count = world(Random(seed))
        snapshot = Snapshot.of(load_objects(objects))
        compiled, _ = compile(snapshot, EnvoyOptions(profile=profile, max_program_size=MAX_PROGRAM_SIZE))
        closed = {(name, f"{words}{HERE}") for name, words in told(compiled.diagnostics, "TW655")}
        checked = told(envoy_findings(snapshot), "TW662")
        (edge,) = snapshot.of_kind("gateway.networking.k8s.io", "Gateway")
        routes = snapshot.of_kind("gateway.networking.k8s.io", "HTTPRoute")
        (web,) = [each for each in routes if each.name == "web"]
        way: dict[str, Any] = {"gateway": "shop/edge", "listener": "http", "route": "HTTPRoute/shop/web"}
        answered, by_backends = set[str](), set[str]()
        places = [RequestPlace(edge, route=web, rule=number) for number in range(count)]
        ways = [{**way, "rule": number} for number in range(count)]
        child = next((each for each in routes if each is not web), None)
        above = RouteRule(web, 0)
        for path in gateway_graph(snapshot).request_paths():
            if path.route is child and path.parents == (above,):
                places.append(RequestPlace(edge, route=child, rule=path.rule, parents=(above,)))
                parents = ["HTTPRoute/shop/web#0"]
                ways.append({**way, "route": "HTTPRoute/shop/child", "rule": path.rule, "parents": parents})
        for place, question in zip(places, ways, strict=True):
            answered |= {*details(ask(snapshot, GatewayQuestion(**question, profile=profile))).notes}
            parts = rule_closings(snapshot, profile).at(place)
            by_backends |= {closing.note for closing in parts if closing.is_of_backend}
        assert {note for note in answered if note.endswith(HERE)} == {words for _, words in closed}, seed
        if profile == "docs":
            of_routes = {(name, words) for name, words in checked if words.endswith(HERE)}
            assert of_routes == {(name, words) for name, words in closed if words not in by_backends}, seed
            # What is wrong with a backend is said of the backend.
            for part_of_backend in (note.partition(" is not supported")[0] for note in by_backends):
                assert any(part_of_backend in words for _, words in checked), seed
        # Settings by themselves: at each place that `run` closes for them, or leaves them out.
        answers = ask_everywhere(snapshot, GatewayQuestion(profile=profile))
        everywhere = {note for answer in answers for note in details(answer).notes}
        causes = {(name, cause(words)) for name, words in checked}
        for name, words in told(compiled.diagnostics, "TW662", "TW663"):
            if " is refused: " not in words:
                assert (name, cause(words)) in causes, seed
                # Copies go to backends that no backendRef leads to.
                copied = re.search(r" rule (r\d), (AgentgatewayBackend/shop/b\d)#?(\S*) are answered", words)
                at: dict[str, Any] = (
                    dict(zip(("rule", "backend", "backend_section"), copied.groups(), strict=True)) if copied else {}
                )
                asked = GatewayQuestion(profile=profile, **way, **{key: value for key, value in at.items() if value})
                there = everywhere | {*details(ask(snapshot, asked)).notes}
                assert any(part(words) in note for note in there), seed
        seen |= {next((name for name in NAMES if name in words), "") for _, words in closed}
    # Other seeds may draw less.
    assert seen >= NAMES or SEEDED, NAMES - seen


AGENTIC = "agentic.networking.x-k8s.io/v0alpha0"
ON_EDGE = {"parentRefs": [{"name": "edge"}]}
LISTS = [{"name": "any", "authorization": {"type": "Inline", "mcp": {"methods": [{"name": "tools/list"}]}}}]
JUDGED = (
    "another `Content-Encoding` or charset of messages that policies judge is not supported",
    "gRPC is not MCP: every call is refused",
    " has it",
)


def judged_world(dice: Random) -> list[Object]:
    """Routes of both kinds to a server of MCP and a Service, with and without policies that judge messages."""

    def headers(filters: bool) -> Object:
        name, value = dice.choice((("Content-Encoding", "gzip"), ("Content-Type", "text/plain; charset=ascii")))
        changed = {dice.choice(("set", "add")): [{"name": dice.choice((name, "x")), "value": value}]}
        change = {"type": "RequestHeaderModifier", "requestHeaderModifier": changed}
        return ({"filters": [change]} if filters else changed) if dice.random() < 0.5 else {}

    def ref() -> Object:
        server = {"group": "agentic.networking.x-k8s.io", "kind": "XBackend", "name": "server"}
        return {**dice.choice((server, {"name": "one", "port": 80})), **headers(True)}

    parts = [{"matches": [{"path": {"value": f"/{n}"}}], **headers(True), "backendRefs": [ref()]} for n in range(2)]
    calls = [{"backendRefs": [ref()]}]
    names = dice.choice((["b.example"], ["a.example"], ["a.example", "b.example"]))
    objects = [
        gateway(),
        service("one"),
        manifest(AGENTIC, "XBackend", "server", {"mcp": {"serviceName": "one", "port": 80}}, "shop"),
        manifest(GATEWAY_API, "HTTPRoute", "web", {**ON_EDGE, "hostnames": ["a.example"], "rules": parts}, "shop"),
        manifest(GATEWAY_API, "GRPCRoute", "calls", {**ON_EDGE, "hostnames": names, "rules": calls}, "shop"),
    ]
    targets = [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"}]
    targets.append({"group": "agentic.networking.x-k8s.io", "kind": "XBackend", "name": "server"})
    if dice.random() < 0.6:
        spec = {
            "targetRefs": [dice.choice(targets)],
            "action": "Allow",
            "rules": [{"name": "any", "authorization": LISTS}],
        }
        objects.append(manifest("agentic.networking.x-k8s.io/v1alpha1", "XAccessPolicy", "judge", spec, "shop"))
    if changed := headers(False):
        objects.append(policy("p", "HTTPRoute/web", traffic={"headerModifiers": {"request": changed}}))
    return objects


def test_what_may_not_be_before_judged_messages_is_said_everywhere() -> None:
    seen: set[str] = set()
    for seed in seeds(30):
        snapshot = Snapshot.of(load_objects(judged_world(Random(seed))))
        compiled, _ = compile(snapshot, EnvoyOptions())
        closed = {(name, f"{words}{HERE}") for name, words in told(compiled.diagnostics, "TW655")}
        assert told(envoy_findings(snapshot), "TW662") == closed, seed
        notes = {note for answer in ask_everywhere(snapshot, GatewayQuestion()) for note in details(answer).notes}
        assert {note for note in notes if note.endswith(HERE)} == {words for _, words in closed}, seed
        seen |= {part for _, words in closed for part in JUDGED if part in words}
    assert seen == {*JUDGED}
