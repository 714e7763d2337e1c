"""A real Envoy obeys what restricts requests in front of rules of every kind (docs/gateway.md#obeyed-by-run)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import product
from typing import Any, NamedTuple

import pytest

from tests.engines.test_envoy_settings import headers, jwt, rules, sha
from tests.engines.test_envoy_settings_choices import listed
from tests.labs.envoy_services import LIMIT, EnvoyServices
from tests.labs.settings_lab import EchoBackend, SettingsLab, settings_lab
from tests.worlds.gateway_settings import Object, gateway, policy, route, secret, service, to
from tierwall.gateway.model.fields import PROFILES

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]


class Restriction(NamedTuple):
    """A restriction, a request that it refuses, and how many of these requests pass before."""

    settings: Object
    headers: dict[str, str] = {}
    passing: int = 0
    body: bytes | None = None


class Kind(NamedTuple):
    """A kind of rule: the rule, the settings that make it one, and what it answers without a restriction."""

    rule: Object
    answer: int = 200
    settings: Object | None = None


def chosen(value: Object) -> Object:
    """A list that has this value for every request."""
    return listed(("'x-none' in request.headers", value), ("request.path.startsWith('/')", value))


_GUARDED: Object = {"backendRef": {"name": "guard", "port": 80}, "http": {"path": "'/deny'"}}
_PROCESSED: Object = {"backendRef": {"name": "services", "port": 80}}
_COUNTED: Object = {
    "global": {**_PROCESSED, "domain": "DOMAIN", "descriptors": [{"entries": [{"name": "who", "expression": "'all'"}]}]}
}
_LIMITED: Object = {"local": [{"requests": 2, "unit": "Hours"}]}
_BLOCKED = {"x_block": "1"}
RESTRICTIONS = {
    "token": Restriction({"jwtAuthentication": jwt()}),
    "password": Restriction({"basicAuthentication": {"users": [sha("ann", "secret")]}}),
    "key": Restriction({"apiKeyAuthentication": {"secretRef": {"name": "keys"}}}),
    "guard": Restriction({"extAuth": _GUARDED}),
    "guard-open": Restriction({"extAuth": {**_GUARDED, "failureMode": "FailOpen"}}),
    "guard-chosen": Restriction({"extAuth": chosen(_GUARDED)}),
    "processing": Restriction({"extProc": _PROCESSED}, _BLOCKED),
    "processing-chosen": Restriction({"extProc": chosen(_PROCESSED)}, _BLOCKED),
    "rule": Restriction({"authorization": rules("'x-bad' in request.headers", action="Deny")}, {"x_bad": "1"}),
    "limit": Restriction({"rateLimit": _LIMITED}, passing=2),
    "limit-chosen": Restriction({"rateLimit": chosen(_LIMITED)}, passing=2),
    "count": Restriction({"rateLimit": _COUNTED}, passing=LIMIT),
    "count-chosen": Restriction({"rateLimit": chosen(_COUNTED)}, passing=LIMIT),
    "csrf": Restriction({"csrf": {}}, {"origin": "https://evil.example"}, body=b"x"),
    "size": Restriction({"buffer": {"request": {"maxBytes": 10}}}, body=b"x" * 100),
}


def filtered(kind: str, **value: Any) -> Object:
    key = {"URLRewrite": "urlRewrite", "CORS": "cors"}.get(kind, kind[0].lower() + kind[1:])
    return {"filters": [{"type": kind, key: value}]}


_TO_ONE: Object = {"backendRefs": to("one")}
_ANSWER: Object = {"directResponse": {"status": 203, "body": "hi", "headers": [{"name": "x-pot", "value": "'tea'"}]}}
_CHILD = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "NAME-child"}
KINDS = {
    "plain": Kind(_TO_ONE),
    "weighted": Kind({"backendRefs": to("one", "two")}),
    "redirect": Kind(filtered("RequestRedirect", hostname="x.example"), 302),
    "answer": Kind(_TO_ONE, 203, _ANSWER),
    "answer-alone": Kind({}, 203, _ANSWER),
    "answer-nowhere": Kind({"backendRefs": to("nowhere")}, 203, _ANSWER),
    "answer-chosen": Kind(_TO_ONE, 203, {"directResponse": chosen({"status": 203})}),
    "rewrite": Kind({**_TO_ONE, **filtered("URLRewrite", hostname="x.example")}),
    "copied": Kind({**_TO_ONE, **filtered("RequestMirror", backendRef=to("two")[0])}),
    "pages": Kind({**_TO_ONE, **filtered("CORS", allowOrigins=["*"])}),
    "repeated": Kind({**_TO_ONE, "timeouts": {"request": "5s"}, "retry": {"attempts": 1, "codes": [503]}}),
    "delegating": Kind({"backendRefs": [_CHILD]}),
}


def objects(section: str | None) -> Iterator[Object]:
    """A route of each kind for each restriction, whose policy is on the route or on its rule."""
    yield from (gateway(), secret("keys", None, first="k1"), *map(service, ("one", "two", "guard", "services")))
    for name, kind, restriction in cases():
        path = {"matches": [{"path": {"value": f"/{name}"}}]}
        rule = replaced({"name": "a", **path, **KINDS[kind].rule}, "NAME-child", f"{name}-child")
        yield route(name, [rule])
        if kind == "delegating":
            child = route(f"{name}-child", [{**path, **_TO_ONE}])
            del child["spec"]["parentRefs"]
            yield child
        settings = replaced(RESTRICTIONS[restriction].settings, "DOMAIN", name)
        yield policy(name, f"HTTPRoute/{name}", section=section, traffic=settings)
        if more := KINDS[kind].settings:
            yield policy(f"{name}-more", f"HTTPRoute/{name}", section="a", traffic=more)


def cases() -> Iterator[tuple[str, str, str]]:
    """A name for each kind and each restriction."""
    for kind in KINDS:
        for restriction in RESTRICTIONS:
            yield f"{kind}-{restriction}", kind, restriction


def replaced(value: Any, old: str, new: str) -> Any:
    """A value with another text in place of one."""
    if isinstance(value, dict):
        return {key: replaced(inner, old, new) for key, inner in value.items()}
    if isinstance(value, list):
        return [replaced(inner, old, new) for inner in value]
    return new if value == old else value


@pytest.fixture(scope="module", params=zip((None, "a"), PROFILES, strict=True), ids=PROFILES)
def lab(request: pytest.FixtureRequest) -> Iterator[SettingsLab]:
    section, profile = request.param
    with ExitStack() as running:
        services = running.enter_context(closing(EnvoyServices()))
        guard = running.enter_context(closing(EchoBackend()))
        guard.refused.add("/deny")
        elsewhere = {"services": services.address, "guard": guard.address}
        served = settings_lab(list(objects(section)), ("one", "two"), elsewhere, profile=profile)
        yield running.enter_context(served)


@pytest.mark.parametrize("kind", KINDS)
def test_every_restriction_holds(lab: SettingsLab, kind: str) -> None:
    got, wanted = {}, {}
    for name, restriction in ((name, each) for name, of, each in cases() if of == kind):
        _, sent, passing, body = RESTRICTIONS[restriction]
        method = "GET" if body is None else "POST"
        answers = [lab.send(f"/{name}", method, body, **sent).status for _ in range(passing + 1)]
        got[restriction] = answers[:-1], {500: "closed", KINDS[kind].answer: "open"}.get(answers[-1], "refused")
        wanted[restriction] = [KINDS[kind].answer] * passing, "refused"
    assert got == wanted


def test_an_answer_behind_a_limit_is_the_whole_answer(lab: SettingsLab) -> None:
    for name in ("answer-rule", "answer-csrf"):
        plain = lab.send(f"/{name}")
        assert (plain.status, plain.body, plain.headers["x-pot"]) == (203, b"hi", "tea")
    objects = [gateway(), route("r", [{"name": "a"}])]
    traffic = {"rateLimit": _LIMITED, "headerModifiers": {"response": headers(x_out="1")}, **_ANSWER}
    with settings_lab([*objects, policy("p", "HTTPRoute/r", traffic=traffic)]) as limited:
        answer = limited.send("/", "POST", b"a body")
    assert (answer.status, answer.body) == (203, b"hi")
    assert (answer.headers["x-pot"], answer.headers["x-out"]) == ("tea", "1")


def test_no_setting_answers_for_a_rule_that_cannot_be_served() -> None:
    asked = filtered("ExternalAuth", protocol="HTTP", backendRef=to("one")[0], http={"path": "/deny"})
    objects = [gateway(), service("one"), route("r", [{**_TO_ONE, **asked}])]
    with settings_lab([*objects, policy("p", "HTTPRoute/r", traffic=_ANSWER)]) as closed:
        assert closed.send("/").status == 500


def test_override_replaces_what_a_rule_sets_by_itself() -> None:
    written = {"retry": {"attempts": 1, "codes": [500]}, **filtered("RequestHeaderModifier", **headers(x_own="1"))}
    settings = {"retry": {"attempts": 2, "codes": [503]}, "headerModifiers": {"request": headers(x_policy="1")}}
    objects = [gateway(), service("one"), route("r", [{**_TO_ONE, **written}])]
    with settings_lab([*objects, policy("p", "Gateway/edge", inheritance="Override", traffic=settings)]) as lab:
        seen = lab.send("/").seen
        assert ("x-own" in seen, seen["x-policy"]) == (False, "1")
        for status, tries in (("500", 1), ("503", 3)):
            before = len(lab.backend.paths)
            lab.send("/", x_status=status)
            assert len(lab.backend.paths) - before == tries


def test_bodies_are_limited_before_what_waits() -> None:
    asked = {"backendRef": {"name": "guard", "port": 80}, "http": {"path": "'/ok'"}}
    forwarding = {"extAuth": {**asked, "forwardBody": {"maxSize": 10}}}
    settings: dict[str, Object] = {
        "size": {"traffic": {"extAuth": asked, "buffer": {"request": {"maxBytes": 10}}}},
        "counted": {"traffic": {"rateLimit": _COUNTED, "buffer": {"request": {"maxBytes": 10}}}},
        "forwarded": {"traffic": forwarding},
        "forwarded-chosen": {"traffic": {"extAuth": chosen(forwarding["extAuth"])}},
        "forwarded-behind": {"backend": forwarding},
    }
    ways = [{"name": name, "matches": [{"path": {"value": f"/{name}"}}], **_TO_ONE} for name in settings]
    before = policy("before", "Gateway/edge", traffic={"phase": "PreRouting", "extAuth": asked})
    policies = [policy(name, "HTTPRoute/r", section=name, **each) for name, each in settings.items()]
    objects = [gateway(), *map(service, ("one", "guard", "services")), route("r", ways), before, *policies]
    with ExitStack() as running:
        services = running.enter_context(closing(EnvoyServices()))
        guard = running.enter_context(closing(EchoBackend()))
        elsewhere = {"guard": guard.address, "services": services.address}
        lab = running.enter_context(settings_lab(objects, ("one",), elsewhere))
        for name in settings:
            assert lab.send(f"/{name}", "POST", b"x" * 10).status == 200, name
            assert lab.send(f"/{name}", "POST", b"x" * 11).status == 413, name
    assert {len(body) for body in guard.bodies} == {0, 10}


_REPLACED = [{"type": "ReplacePrefixMatch", "replacePrefixMatch": to} for to in ("/new", "/", "/new/")]
REDIRECTS: list[Object] = [
    {"hostname": "x.example"},
    {"scheme": "https"},
    {"scheme": "http"},
    {"scheme": "https", "port": 8443, "statusCode": 301},
    {"port": 99, "path": _REPLACED[0]},
    *({"path": path} for path in _REPLACED),
    {"path": {"type": "ReplaceFullPath", "replaceFullPath": "/full"}, "statusCode": 308},
    {"path": {"type": "ReplaceFullPath", "replaceFullPath": "/full?a=1"}, "hostname": "x.example", "statusCode": 303},
]


def test_a_redirect_behind_a_limit_leads_where_it_would_without() -> None:
    limit = {"rateLimit": {"local": [{"requests": 10_000, "unit": "Hours"}]}}
    objects = [gateway(), *(policy(f"p{number}", f"HTTPRoute/limited{number}", traffic=limit) for number in range(10))]
    for name in ("limited", "openly"):
        for number, value in enumerate(REDIRECTS):
            way = {"matches": [{"path": {"value": f"/{name}{number}"}}], **filtered("RequestRedirect", **value)}
            objects.append(route(f"{name}{number}", [way]))
    with settings_lab(objects) as lab:
        assert lab.diagnostics == ()
        for number, suffix in product(range(len(REDIRECTS)), ("", "/", "/b/c?q=1&r=%2f", "?x=/1?y", "//d", "/%41")):
            for host in ("h.example", "H.example:8080", "h.example:443", "h.example:80", "[::1]:80", "[::1]"):
                limited, openly = (lab.send(f"/{name}{number}{suffix}", Host=host) for name in ("limited", "openly"))
                assert limited.status == openly.status
                there = openly.headers["location"].replace("/openly", "/limited")
                assert limited.headers["location"] == there, (REDIRECTS[number], suffix, host)
