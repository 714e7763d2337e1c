"""Routes that delegate, with a running Envoy: the child, its backend and its settings (docs/gateway.md#delegation)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tests.labs.envoy_attacks import GATEWAY_API, Object
from tests.labs.envoy_routes import SERVICES, Routed, to
from tests.randomness import seeds
from tests.reference import gateway as settings
from tests.reference.routes import Request, chain
from tests.worlds.tool_objects import manifest

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]

HTTP = f"{GATEWAY_API}/v1"
PATHS = ("/", "/a", "/a/b", "/a/b/c", "/b")
REQUESTS = ("/", "/a", "/a/", "/a/b", "/a/b/c/d", "/b", "/ab", "/c")
TO_PROD = [{"group": GATEWAY_API, "kind": "HTTPRoute", "namespace": "prod"}]


def path(value: str, kind: str = "PathPrefix") -> Object:
    return {"path": {"type": kind, "value": value}}


def delegate(name: str, namespace: str, **more: Any) -> Object:
    return {"group": GATEWAY_API, "kind": "HTTPRoute", "name": name, "namespace": namespace, **more}


def rule(match: Object, refs: list[Object], **more: Any) -> Object:
    return {"matches": [match], "backendRefs": refs, **more}


def services(*names: str) -> list[Object]:
    return [{**ref, "namespace": "prod"} for ref in to(*names)]


def http_route(name: str, namespace: str, rules: list[Object], labels: Object | None = None, **spec: Any) -> Object:
    age = "2026-01-01T00:00:00Z"
    made: Object = {"rules": rules, **spec}
    return manifest(HTTP, "HTTPRoute", name, made, namespace, creationTimestamp=age, labels=labels or {})


def root(name: str, host: str, rules: list[Object]) -> Object:
    return http_route(name, "prod", rules, parentRefs=[{"name": "gate", "sectionName": "web"}], hostnames=[host])


def grants(namespace: str) -> list[Object]:
    """Routes of `prod` may delegate to a namespace, and its routes may use the Services of `prod`."""
    source = {"group": GATEWAY_API, "kind": "HTTPRoute", "namespace": namespace}
    there = {"from": TO_PROD, "to": [{"group": GATEWAY_API, "kind": "HTTPRoute"}]}
    here = {"from": [source], "to": [{"group": "", "kind": "Service"}]}
    version = f"{GATEWAY_API}/v1beta1"
    return [
        manifest(version, "ReferenceGrant", "children", there, namespace),
        manifest(version, "ReferenceGrant", f"of-{namespace}", here),
    ]


def header(value: str) -> Object:
    return {"set": [{"name": "x-by", "value": value}]}


def policy(name: str, of: Object, section: str | None, traffic: Object, inheritance: str) -> Object:
    ref = {"group": GATEWAY_API, "kind": "HTTPRoute", "name": of["metadata"]["name"]}
    refs = [{**ref, "sectionName": section} if section else ref]
    spec = {"targetRefs": refs, "traffic": traffic, "strategy": {"inheritance": inheritance}}
    return manifest("agentgateway.dev/v1alpha1", "AgentgatewayPolicy", name, spec, of["metadata"]["namespace"])


# ---- Random trees, against the reference of routes and that of merges.
def some_match(dice: Random) -> Object:
    out = path(dice.choice(PATHS), dice.choice(("PathPrefix", "PathPrefix", "Exact"))) if dice.random() < 0.8 else {}
    if dice.random() < 0.15:
        out["method"] = dice.choice(("GET", "POST"))
    for field in ("headers", "queryParams"):
        if dice.random() < 0.15:
            out[field] = [{"name": dice.choice("hi"), "value": dice.choice("12")}]
    return out


def some_refs(dice: Random, space: str) -> list[Object]:
    if dice.random() < 0.35:
        return services(dice.choice(SERVICES))
    name = dice.choice(("*", "team=red", "r0", "r1", "r2", "r3"))
    refs = [delegate(name, space)]
    return refs if dice.random() < 0.95 else [*refs, *services("v1")]


def some_world(seed: int) -> list[Object]:
    """A root in `prod`, children in a namespace of their own, and policies on all of them."""
    dice, space, host = Random(seed), f"w{seed}", f"w{seed}.test"
    objects = grants(space)
    routes = []
    for number in range(dice.randint(2, 6)):
        is_root = number == 0
        rules = []
        for index in range(dice.randint(1, 2)):
            refs = [delegate("*", space)] if is_root and index == 0 else some_refs(dice, space)
            made = rule(some_match(dice), refs)
            if is_root and index == 0 and dice.random() < 0.7:
                made["matches"] = [path("/")]
            if dice.random() < 0.5:
                made["name"] = f"n{index}"
            if dice.random() < 0.2:
                native = header(f"{space}-r{number}-{index}")
                made["filters"] = [{"type": "RequestHeaderModifier", "requestHeaderModifier": native}]
            rules.append(made)
        if is_root:
            routes.append(root(space, f"*.{host}", rules))
            continue
        spec: Object = {}
        if dice.random() < 0.3:
            spec["hostnames"] = [dice.choice((f"a.{host}", f"*.{host}", "*.test", "else.test"))]
        if dice.random() < 0.2:
            spec["parentRefs"] = [{"group": GATEWAY_API, "kind": "HTTPRoute", "name": space, "namespace": "prod"}]
        labels = {"team": "red"} if dice.random() < 0.5 else {}
        routes.append(http_route(f"r{number}", space, rules, labels, **spec))
    for number in range(dice.randint(2, 6)):
        of = dice.choice(routes)
        names = [each["name"] for each in of["spec"]["rules"] if "name" in each]
        section = dice.choice(names) if names and dice.random() < 0.5 else None
        traffic: Object = {"headerModifiers": {"request": header(f"{space}-p{number}")}}
        if dice.random() < 0.5:
            denied = {"matchExpressions": [f"request.headers['x-denied'] == '{number}'"]}
            traffic["authorization"] = {"action": "Deny", "policy": denied}
        inheritance = dice.choice(("Default", "Default", "Override"))
        objects.append(policy(f"{space}-p{number}", of, section, traffic, inheritance))
    return [*routes, *objects]


def wanted_setter(objects: list[Object], rules: list[tuple[Object, int]], merged: Any) -> str | None:
    """Return who sets `x-by`: the policy that the merge names, or a rule nearer to the backend by itself."""
    native = None
    for position, (route, number) in enumerate(rules):
        for each in route["spec"]["rules"][number].get("filters", ()):
            native = position, each["requestHeaderModifier"]["set"][0]["value"]
    setting = merged.get("traffic.headerModifiers.request")
    if setting is None or native is None:
        return setting.setting["value"]["set"][0]["value"] if setting is not None else native and native[1]
    name = setting.setting["from"].rpartition("/")[2]
    winner = next(each for each in objects if each["kind"] == "AgentgatewayPolicy" and each["metadata"]["name"] == name)
    target = winner["metadata"]["namespace"], winner["spec"]["targetRefs"][0]["name"]
    places = [(route["metadata"]["namespace"], route["metadata"]["name"]) for route, _ in rules]
    if winner["spec"]["strategy"]["inheritance"] == "Override" or places.index(target) > native[0]:
        return str(setting.setting["value"]["set"][0]["value"])
    return str(native[1])


def question(rules: list[tuple[Object, int]]) -> Object:
    *parents, (route, number) = rules
    names = [f"HTTPRoute/{each['metadata']['namespace']}/{each['metadata']['name']}#{rule}" for each, rule in parents]
    metadata = route["metadata"]
    place = {"gateway": "prod/gate", "listener": "web", "parents": names, "rule": number}
    return {**place, "route": f"HTTPRoute/{metadata['namespace']}/{metadata['name']}"}


def test_random_trees_lead_where_the_reference_says_with_its_settings() -> None:
    worlds = {seed: some_world(seed) for seed in seeds(60)}
    gate = manifest(HTTP, "Gateway", "gate", {"listeners": [{"name": "web", "port": 80}]}, labels={})
    running = Routed([each for objects in worlds.values() for each in objects])
    seen: Counter[Any] = Counter()
    try:
        for seed, objects in worlds.items():
            dice = Random(seed)
            roots = objects[:1]
            for _ in range(20):
                host = f"{dice.choice('aab')}.w{seed}.test"
                headers = {name: dice.choice("12") for name in "hi" if dice.random() < 0.6}
                query = {name: dice.choice("12") for name in "hi" if dice.random() < 0.6}
                asked = Request(host, dice.choice(REQUESTS), dice.choice(("GET", "POST", "PUT")), headers, query)
                denied = str(dice.randrange(6)) if dice.random() < 0.3 else "no"
                text = "&".join(f"{name}={value}" for name, value in query.items())
                got = running.get(
                    host,
                    f"{asked.path}?{text}" if text else asked.path,
                    {**headers, "x-denied": denied},
                    asked.method,
                )
                rules, status = chain(objects, roots, asked)
                if status:
                    assert (got.status, got.backend) == (status, None), (objects, asked)
                    seen[status] += 1
                    continue
                merged = settings.merge([gate, *objects], question(rules), "docs")
                denying = merged.get("traffic.authorization")
                values = denying.setting["value"] if denying is not None and denying.setting else []
                if any(f"== '{denied}'" in value["policy"]["matchExpressions"][0] for value in values):
                    assert (got.status, got.backend) == (403, None), (objects, asked)
                    seen[403] += 1
                    continue
                route, number = rules[-1]
                backend = route["spec"]["rules"][number]["backendRefs"][0]["name"]
                assert (got.status, got.backend) == (200, backend), (objects, asked)
                assert got.request is not None
                assert got.request.headers.get("x-by") == wanted_setter(objects, rules, merged), (objects, asked)
                seen[len(rules)] += 1
    finally:
        running.close()
    assert all(seen[kind] for kind in (1, 2, 3, 403, 404, 500)), seen


# ---- Single cases, each with a host name of its own.
def rewriting(to_prefix: str) -> list[Object]:
    value = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": to_prefix}}
    return [{"type": "URLRewrite", "urlRewrite": value}]


def one_child(case: str, parent: Object, *children: Object, **more: Any) -> list[Object]:
    """A root whose rule delegates to the children with the label of the case."""
    made = [http_route(f"{case}-{number}", "team", [child], {"case": case}) for number, child in enumerate(children)]
    return [root(case, f"{case}.test", [rule(parent, [delegate(f"case={case}", "team")], **more)]), *made]


def chain_of(length: int) -> list[Object]:
    """A chain of routes that delegate, the last of which has a backend."""
    case = f"chain{length}"
    refs = [[delegate(f"{case}-{number}", "team")] for number in range(1, length)]
    rules = [[rule(path("/"), each)] for each in (*refs, services("v1"))]
    inner = [http_route(f"{case}-{number}", "team", each) for number, each in enumerate(rules[1:], 1)]
    return [root(case, f"{case}.test", rules[0]), *inner]


PATTERN = {"path": {"type": "RegularExpression", "value": "/p/[0-9]+(/x)?"}}
OTHER_PATTERN = {"path": {"type": "RegularExpression", "value": "/p/.*"}}


def cases() -> list[Object]:
    v1, v2 = services("v1"), services("v2")
    many = [rule(path(f"/{number}"), v1) for number in range(8)]
    crowd = [http_route(f"crowd-{number}", "team", many, {"case": "crowd"}) for number in range(260)]
    names = [[f"h{number}-{index}.hosts.test" for index in range(16)] for number in range(5)]
    hosts = [
        http_route(f"hosts-{number}", "team", [rule(path("/"), v1)], {"case": "hosts"}, hostnames=each)
        for number, each in enumerate(names)
    ]
    shared = rule(path("/"), [delegate("case=plain", "team"), *v1])
    changed = rule(path("/"), [delegate("case=plain", "team", filters=rewriting("/x"))])
    refused = http_route("refused", "team", [rule(path("/a/b"), v1, retry={"attempts": "many"})], {"case": "refused"})
    return [
        *grants("team"),
        *one_child("plain", path("/a"), rule(path("/a/b"), v1)),
        *one_child("wide", path("/a"), rule(path("/"), v1, filters=rewriting("/new"))),
        *one_child("exact", path("/a/b", "Exact"), rule(path("/a"), v1, filters=rewriting("/new"))),
        *one_child("inherited", path("/a"), rule(path("/a/b"), v1), filters=rewriting("/new")),
        *one_child("not-a-prefix", path("/a"), rule(path("/a/b", "Exact"), v1), filters=rewriting("/new")),
        *one_child("above", PATTERN, rule(path("/p/1"), v1), rule(path("/p/2", "Exact"), v2)),
        *one_child("below", path("/p/1"), rule(PATTERN, v1)),
        *one_child("two", PATTERN, rule(OTHER_PATTERN, v1), rule(path("/p/7"), v2)),
        *one_child("methods", {"method": "GET"}, rule({"method": "POST"}, v1), rule({"method": "GET"}, v2)),
        *one_child("refused", path("/a"), rule(path("/a"), v2)),
        refused,
        *chain_of(16),
        *chain_of(17),
        root("shared", "shared.test", [shared]),
        root("changed", "changed.test", [changed]),
        root("crowd", "crowd.test", [rule(path("/"), [delegate("case=crowd", "team")]), rule(path("/9"), v2)]),
        *crowd,
        root("hosts", "*.hosts.test", [rule(path("/"), [delegate("case=hosts", "team")])]),
        *hosts,
    ]


@pytest.fixture(scope="module")
def running() -> Iterator[Routed]:
    envoy = Routed(cases())
    yield envoy
    envoy.close()


@pytest.mark.parametrize(
    ("case", "asked", "wanted"),
    [
        ("plain", "/a/b/c?d=e", (200, "v1", "/a/b/c?d=e")),
        ("plain", "/a/c", (404, None, None)),
        ("plain", "/b", (404, None, None)),
        # The prefix that is replaced is that of the child.
        ("wide", "/a", (200, "v1", "/new/a")),
        ("wide", "/a/b?c=d", (200, "v1", "/new/a/b?c=d")),
        ("wide", "/a?c=d", (200, "v1", "/new/a?c=d")),
        ("wide", "/ab", (404, None, None)),
        ("exact", "/a/b?c=d", (200, "v1", "/new/b?c=d")),
        ("exact", "/a/b/c", (404, None, None)),
        ("inherited", "/a/b/c", (200, "v1", "/new/c")),
        ("not-a-prefix", "/a/b", (500, None, None)),
        ("above", "/p/1", (200, "v1", "/p/1")),
        ("above", "/p/1?q", (200, "v1", "/p/1?q")),
        ("above", "/p/1/x?q", (200, "v1", "/p/1/x?q")),
        ("above", "/p/1/y", (404, None, None)),
        ("above", "/p/2?q", (200, "v2", "/p/2?q")),
        ("above", "/p/2/x", (404, None, None)),
        # A query string is not part of a path.
        ("above", "/p/1/y?/p/1", (404, None, None)),
        ("below", "/p/1/x", (200, "v1", "/p/1/x")),
        ("below", "/p/2", (404, None, None)),
        ("two", "/p/5", (404, None, None)),
        ("two", "/p/7", (200, "v2", "/p/7")),
        ("methods", "/", (200, "v2", "/")),
        # What is wrong with a child closes that child alone.
        ("refused", "/a/b", (500, None, None)),
        ("refused", "/a/c", (200, "v2", "/a/c")),
        ("chain16", "/", (200, "v1", "/")),
        ("chain17", "/", (500, None, None)),
        ("shared", "/a/b", (500, None, None)),
        ("changed", "/a/b", (500, None, None)),
        # What is wrong with a rule closes that rule alone.
        ("crowd", "/1", (500, None, None)),
        ("crowd", "/9", (200, "v2", "/9")),
        ("h1-1.hosts", "/", (500, None, None)),
    ],
)
def test_single_chains(running: Routed, case: str, asked: str, wanted: Any) -> None:
    got = running.get(f"{case}.test", asked)
    assert (got.status, got.backend, got.path) == wanted


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("two-0", "a chain with several patterns of paths"),
        ("not-a-prefix-0", "replacing a prefix where the path is not one"),
        ("chain17-15", "a chain of more than 16 routes"),
        ("shared", "a rule that delegates and has other backends"),
        ("changed", "a change of requests by a reference to other routes"),
        ("crowd", "a rule that leads to more than 2,000 matches of other routes"),
        ("hosts", "a rule that leads to more than 64 host names of other routes"),
    ],
)
def test_what_is_not_followed_is_said_once(running: Routed, name: str, words: str) -> None:
    about = [each for each in running.resources.diagnostics if f"{words} is not supported" in each.message]
    assert [(each.code, each.reference.name) for each in about if each.reference] == [("TW655", name)]
