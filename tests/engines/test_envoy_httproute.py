"""HTTPRoutes with a running Envoy: precedence of matches, and effects of filters (Gateway API, HTTPRoute)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.labs.envoy_attacks import GATEWAY_API, NETWORKING, Object, behind, policy
from tests.labs.envoy_routes import SERVICES, Routed, route, silent, to
from tests.reference.routes import Request, best
from tierwall.tool.question import ToolQuestion, ask

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]


def path(value: str, kind: str = "PathPrefix") -> Object:
    return {"path": {"type": kind, "value": value}}


def rule(match: Object | list[Object], *services: str, **more: Any) -> Object:
    return {"matches": match if isinstance(match, list) else [match], "backendRefs": to(*services), **more}


def rewrite(match: Object, **value: Any) -> Object:
    return rule(match, "v1", filters=[{"type": "URLRewrite", "urlRewrite": value}])


def full(text: str) -> Object:
    return {"type": "ReplaceFullPath", "replaceFullPath": text}


def prefix(text: str) -> Object:
    return {"type": "ReplacePrefixMatch", "replacePrefixMatch": text}


def redirect(match: Object, **value: Any) -> Object:
    return {"matches": [match], "filters": [{"type": "RequestRedirect", "requestRedirect": value}]}


def modifier(kind: str, **value: Any) -> Object:
    return {"type": kind, kind[0].lower() + kind[1:]: value}


def pairs(**values: str) -> list[Object]:
    return [{"name": name.replace("_", "-"), "value": value} for name, value in values.items()]


# ---- Rewrites: the rows of the table in the description of `replacePrefixMatch`, and more.
REWRITES = (
    ("/foo", "/xyz", "/foo/bar", "/xyz/bar"),
    ("/foo", "/xyz/", "/foo/bar", "/xyz/bar"),
    ("/foo/", "/xyz", "/foo/bar", "/xyz/bar"),
    ("/foo/", "/xyz/", "/foo/bar", "/xyz/bar"),
    ("/foo", "/xyz", "/foo", "/xyz"),
    ("/foo/", "/xyz", "/foo", "/xyz"),
    ("/foo", "/xyz", "/foo/", "/xyz/"),
    ("/foo", "", "/foo/bar", "/bar"),
    ("/foo", "", "/foo/", "/"),
    ("/foo", "", "/foo", "/"),
    ("/foo", "/", "/foo/", "/"),
    ("/foo", "/", "/foo", "/"),
    ("/foo", "/", "/foo/bar/foo", "/bar/foo"),
    ("/foo", "/", "/foo?a=/foo/b", "/?a=/foo/b"),
    ("/foo", "/", "/foo/bar?a=b", "/bar?a=b"),
    ("/foo", "/xyz", "/foo/bar?a=b", "/xyz/bar?a=b"),
    ("/foo", "xyz", "/foo/bar", "/xyz/bar"),
    ("/", "/xyz", "/bar", "/xyz/bar"),
    ("/", "/xyz", "/", "/xyz/"),
    ("/", "/", "/bar", "/bar"),
    ("/a.b", "/", "/a.b/c", "/c"),
    ("/a+(b)*", "/", "/a+(b)*/c", "/c"),
    ("/a$b", "/", "/a$b/c", "/c"),
    ("/a%20b", "/", "/a%20b/c", "/c"),
    ("/aa/a", "/", "/aa/a/aa/a/b", "/aa/a/b"),
    ("/foo", "/a\\1b", "/foo/c", "/a\\1b/c"),
    ("/foo", "/a%b", "/foo/c", "/a%b/c"),
    (f"/{'long/' * 60}end", "/", f"/{'long/' * 60}end/x", "/x"),
)
FULL = (
    ("/one", "/full/one/two", "/one"),
    ("/one", "/full?a=b", "/one?a=b"),
    ("/", "/full/x", "/"),
    ("", "/full/x", "/"),
    ("one", "/full/x", "/one"),
    ("/a\\1b\\0", "/full", "/a\\1b\\0"),
)
# ---- Redirects: the location that the client gets, by listener.
# `o` is `example.org`; `r` is the requested host, which may contain the port even if it is the scheme's default.
WHERE: dict[str, tuple[Object, str]] = {
    "nothing": ({"hostname": "example.org"}, "http://o http://o:8080 https://o"),
    "80": ({"hostname": "example.org", "port": 80}, "http://o http://o https://o:80"),
    "8080": ({"hostname": "example.org", "port": 8080}, "http://o:8080 http://o:8080 https://o:8080"),
    "443": ({"hostname": "example.org", "port": 443}, "http://o:443 http://o:443 https://o"),
    "https": ({"hostname": "example.org", "scheme": "https"}, "https://o https://o https://o"),
    "https-443": ({"hostname": "example.org", "scheme": "https", "port": 443}, "https://o https://o https://o"),
    "https-8443": (
        {"hostname": "example.org", "scheme": "https", "port": 8443},
        "https://o:8443 https://o:8443 https://o:8443",
    ),
    "http": ({"hostname": "example.org", "scheme": "http"}, "http://o http://o http://o"),
    "http-8080": (
        {"hostname": "example.org", "scheme": "http", "port": 8080},
        "http://o:8080 http://o:8080 http://o:8080",
    ),
    "same-host": ({"path": full("/same-host")}, "http://r http://r:8080 https://r"),
    "same-host-https": ({"scheme": "https"}, "https://r https://r:443 https://r"),
    "same-host-80": ({"port": 80}, "http://r http://r:80 https://r:80"),
}
ELSEWHERE: tuple[tuple[Object, str, str], ...] = (
    ({"path": prefix("/new")}, "/old/a?x=1", "/new/a?x=1"),
    ({"path": prefix("/")}, "/old/a", "/a"),
    ({"path": prefix("/")}, "/old", "/"),
    ({"path": prefix("/new/")}, "/old", "/new"),
    ({"path": full("/new")}, "/old/a?x=1", "/new?x=1"),
    ({"path": full("new")}, "/old/a", "/new"),
    ({}, "/old/a?x=1", "/old/a?x=1"),
)
HEADERS = {
    "plain": "b",
    "percent": "100%",
    "command": "%REQ(cookie)%",
    "quoted": '"x"; y=z',
}


def objects() -> list[Object]:
    out = [
        route(f"prefix-{number}", f"p{number}.test", [rewrite(path(match), path=prefix(new))])
        for number, (match, new, _, _) in enumerate(REWRITES)
    ]
    out += [
        route(f"full-{number}", f"f{number}.test", [rewrite(path("/full"), path=full(new))])
        for number, (new, _, _) in enumerate(FULL)
    ]
    out += [route("hosts", "h.test", [rewrite(path("/"), hostname="one.example.org")])]
    for on in ("web", "other", "secure"):
        to_there = [redirect(path(f"/{name}"), **value) for name, (value, _) in WHERE.items()]
        out.append(route(f"where-{on}", "r.test", to_there, on=on))
    out += [
        route(f"else-{number}", f"e{number}.test", [redirect(path("/old"), **value)])
        for number, (value, _, _) in enumerate(ELSEWHERE)
    ]
    codes = [redirect(path(f"/{code}"), statusCode=code, hostname="x.test") for code in (301, 302, 303, 307, 308)]
    out.append(route("codes", "codes.test", [*codes, redirect(path("/default"), hostname="x.test")]))
    out += modifiers() + matching() + hostnames() + cors() + closed()
    return out


def modifiers() -> list[Object]:
    changes = {
        "set": pairs(x_header_set="set-overwrites-values", **{f"x_{name}": text for name, text in HEADERS.items()}),
        "add": pairs(x_header_add="add-appends-values", x_header_append="header-val-2"),
        "remove": ["X-Header-Remove", "x-absent"],
    }
    both = [modifier("RequestHeaderModifier", **changes), {"type": "URLRewrite", "urlRewrite": {"path": full("/both")}}]
    answer = {"set": pairs(server="none", x_header_set="mine"), "add": pairs(x_added="1"), "remove": ["content-type"]}
    return [
        route("request-headers", "q.test", [rule(path("/"), "v1", filters=both[:1])]),
        route("request-both", "both.test", [rule(path("/"), "v1", filters=both)]),
        route("response-headers", "a.test", [rule({}, "v1", filters=[modifier("ResponseHeaderModifier", **answer)])]),
    ]


def matching() -> list[Object]:
    header = {"headers": [{"name": "Version", "value": "two"}]}
    second = rule([path("/v2"), {**path("/"), **header}], "v2")
    dolphin = {"name": "animal", "value": "dolphin"}
    return [
        # From the conformance suite: matches of one route, and of two routes.
        route("matching", "m.test", [rule([path("/"), header], "v1"), second]),
        route("part1", ["x1.test", "x2.test"], [rule([path("/"), header], "v1")]),
        route("part2", "x1.test", [second], created=2),
        route(
            "order",
            "o.test",
            [
                rule(path("/match/exact/one", "Exact"), "v3"),
                rule(path("/match/exact", "Exact"), "v2"),
                rule(path("/match"), "v1"),
                rule(path("/match/prefix/one/"), "v2"),
                rule(path("/match/prefix"), "v3"),
                rule(path("/regex/[a-z]+", "RegularExpression"), "v2"),
                rule(path("/"), "v1"),
            ],
        ),
        route(
            "texts",
            "t.test",
            [
                rule({"headers": [{"name": "x-color", "value": "green|blue", "type": "RegularExpression"}]}, "v2"),
                rule({"queryParams": [{"name": "animal", "value": "wh.+", "type": "RegularExpression"}]}, "v2"),
                rule({"queryParams": [dolphin, {"name": "color", "value": "blue"}]}, "v3"),
                rule({"queryParams": [dolphin]}, "v1"),
                rule({"headers": [{"name": "X-Two", "value": "a"}, {"name": "x-two", "value": "b"}]}, "v3"),
            ],
        ),
    ]


CORS: dict[str, Object] = {
    "listed": {
        "allowOrigins": ["https://www.foo.com", "https://*.bar.com"],
        "allowMethods": ["GET", "OPTIONS"],
        "allowHeaders": ["x-header-1", "x-header-2"],
        "exposeHeaders": ["x-header-3", "x-header-4"],
        "allowCredentials": True,
        "maxAge": 3600,
    },
    "any-method": {"allowOrigins": ["https://www.foo.com"], "allowMethods": ["*"]},
    "any-origin": {"allowOrigins": ["*"], "allowMethods": ["PUT"], "allowHeaders": ["*"]},
    "any-secure": {"allowOrigins": ["https://*"]},
    "all": {"allowOrigins": ["*"], "allowMethods": ["*"], "allowHeaders": ["*"], "allowCredentials": True},
}


def cors() -> list[Object]:
    out = [
        route(f"cors-{name}", f"{name}.cors.test", [rule(path("/"), "v1", filters=[{"type": "CORS", "cors": value}])])
        for name, value in CORS.items()
    ]
    guarded = rule(path("/"), "v1", filters=[{"type": "CORS", "cors": CORS["listed"]}])
    guarded["backendRefs"] = [{"group": NETWORKING, "kind": "XBackend", "name": "guarded"}]
    nobody = {"source": {"type": "SPIFFE", "spiffe": "spiffe://cluster.local/ns/a/sa/b"}}
    return [
        *out,
        behind("guarded")[0],
        route("cors-guarded", "guarded.cors.test", [guarded]),
        policy("guarded", "guarded", [nobody]),
    ]


def hostnames() -> list[Object]:
    return [
        route("wild", "*.wild.test", [rule({}, "v1")]),
        route("deeper", "*.deep.wild.test", [rule({}, "v2")]),
        route("exact", "very.deep.wild.test", [rule({}, "v3")]),
        # Requests that the routes for a host do not match go to routes for wider names, whatever their matches are.
        route("narrow", "a.b.fall.test", [rule(path("/a"), "v1")], created=3),
        route("wide", "*.b.fall.test", [rule(path("/a/x", "Exact"), "v2"), rule(path("/b"), "v2")], created=2),
        route("wider", "*.fall.test", [rule(path("/b/x", "Exact"), "v3"), rule(path("/"), "v3")]),
        route("everything", "*", [rule(path("/everywhere"), "v1")]),
    ]


UNUSABLE: dict[str, Object] = {
    "extension": {
        "filters": [{"type": "ExtensionRef", "extensionRef": {"group": "example.org", "kind": "Filter", "name": "x"}}]
    },
    "persistent": {"sessionPersistence": {"sessionName": "s"}},
    "host": {"filters": [modifier("RequestHeaderModifier", set=pairs(Host="x"))]},
    "length": {"filters": [modifier("RequestHeaderModifier", set=[{"name": "Content-Length", "value": "1"}])]},
    "remove-host": {"filters": [modifier("RequestHeaderModifier", remove=["Host"])]},
    "remove-path": {"filters": [modifier("RequestHeaderModifier", remove=[":path"])]},
    "remove-nothing": {"filters": [modifier("ResponseHeaderModifier", remove=[""])]},
    "remove-words": {"filters": [modifier("ResponseHeaderModifier", remove=["two words"])]},
    "control": {"filters": [modifier("RequestHeaderModifier", set=[{"name": "x", "value": "a\r\nb: c"}])]},
    "null": {"filters": [modifier("ResponseHeaderModifier", add=[{"name": "x", "value": "a\0"}])]},
    "unending": {"filters": [{"type": "URLRewrite", "urlRewrite": {"path": prefix("/")}}]},
}
UNUSABLE["cors-headers"] = {
    "filters": [{"type": "CORS", "cors": {"allowOrigins": ["*"], "exposeHeaders": ["*"], "allowCredentials": True}}]
}
UNUSABLE["cors-long"] = {"filters": [{"type": "CORS", "cors": {"allowOrigins": [f"https://*.{'a' * 200}.com"]}}]}
PATTERNS = ("(", "a{1000}", "[a-z]{100}x", "(?=a)", "\\1")


def closed() -> list[Object]:
    out = [
        route(f"closed-{name}", f"{name}.closed.test", [rule(path("/"), "v1", **value)])
        for name, value in UNUSABLE.items()
    ]
    unending = next(route_object for route_object in out if route_object["metadata"]["name"] == "closed-unending")
    unending["spec"]["rules"][0]["matches"] = [path(f"/{'a' * 400}")]
    for number, text in enumerate(PATTERNS):
        bad = [
            rule(path(f"/{text}", "RegularExpression"), "v1"),
            rule({"headers": [{"name": "x", "value": text, "type": "RegularExpression"}]}, "v2"),
            rule({"queryParams": [{"name": "x", "value": text, "type": "RegularExpression"}]}, "v2"),
            rule(path("/fine"), "v3"),
        ]
        out.append(route(f"pattern-{number}", f"n{number}.test", bad))
    return out


@pytest.fixture(scope="module")
def routed() -> Iterator[Routed]:
    running = Routed(objects())
    yield running
    running.close()


@pytest.mark.parametrize("number", range(len(REWRITES)))
def test_prefixes_are_replaced_as_the_table_says(routed: Routed, number: int) -> None:
    _, _, asked, wanted = REWRITES[number]
    got = routed.get(f"p{number}.test", asked)
    assert (got.status, got.path) == (200, wanted)


@pytest.mark.parametrize("number", range(len(FULL)))
def test_full_paths_are_replaced_and_query_strings_kept(routed: Routed, number: int) -> None:
    _, asked, wanted = FULL[number]
    assert routed.get(f"f{number}.test", asked).path == wanted


def test_a_prefix_is_replaced_only_at_the_end_of_a_path_element(routed: Routed) -> None:
    assert routed.get("p0.test", "/foobar").status == 404
    assert routed.get("p7.test", "/foobar").status == 404


def test_host_names_are_replaced(routed: Routed) -> None:
    got = routed.get("h.test", "/x")
    assert got.request is not None
    assert got.request.headers["host"] == "one.example.org"
    assert got.path == "/x"


@pytest.mark.parametrize("on", ["web", "other", "secure"])
@pytest.mark.parametrize("name", WHERE)
def test_redirects_use_the_port_of_the_scheme_or_listener(routed: Routed, name: str, on: str) -> None:
    host = "r.test:8080" if on == "other" else "r.test"
    got = routed.get(host, f"/{name}", on=on)
    assert (got.status, got.backend) == (302, None)
    wanted = WHERE[name][1].split()[("web", "other", "secure").index(on)]
    wanted = wanted.replace("//o", "//example.org").replace("//r", "//r.test")
    assert got.headers["location"] == f"{wanted}/{name}"


@pytest.mark.parametrize("number", range(len(ELSEWHERE)))
def test_redirects_replace_paths_as_rewrites_do(routed: Routed, number: int) -> None:
    _, asked, wanted = ELSEWHERE[number]
    assert routed.get(f"e{number}.test", asked).headers["location"] == f"http://e{number}.test{wanted}"


def test_redirects_have_the_requested_status(routed: Routed) -> None:
    for code in (301, 302, 303, 307, 308):
        for method in ("GET", "POST"):
            assert routed.get("codes.test", f"/{code}", method=method, body=b"x").status == code
    assert routed.get("codes.test", "/default").status == 302


def test_request_headers_are_set_added_and_removed(routed: Routed) -> None:
    sent = [("X-Header-Set", "some"), ("X-Header-Append", "append-val-1"), ("X-Header-Remove", "gone"), ("X-Kept", "1")]
    for host in ("q.test", "both.test"):
        got = routed.get(host, "/a", sent).request
        assert got is not None
        assert got.path == ("/both" if host == "both.test" else "/a")
        assert got.headers["x-header-set"] == "set-overwrites-values"
        assert got.headers["x-header-add"] == "add-appends-values"
        assert got.headers["x-header-append"] in ("append-val-1,header-val-2", "header-val-2")
        assert got.headers["x-kept"] == "1"
        assert "x-header-remove" not in got.headers
        for name, text in HEADERS.items():
            assert got.headers[f"x-{name}"] == text


def test_response_headers_are_set_added_and_removed(routed: Routed) -> None:
    got = routed.get("a.test")
    assert got.headers["x-header-set"] == "mine"
    assert got.headers["x-added"] == "1"
    assert "content-type" not in got.headers


@pytest.mark.parametrize(
    ("host", "asked", "headers", "wanted"),
    [
        ("m.test", "/", {}, "v1"),
        ("m.test", "/example", {}, "v1"),
        ("m.test", "/", {"Version": "one"}, "v1"),
        ("m.test", "/v2", {}, "v2"),
        ("m.test", "/v2/", {}, "v2"),
        ("m.test", "/v2?hello=there", {}, "v2"),
        ("m.test", "/v2/example", {}, "v2"),
        ("m.test", "/v2example", {}, "v1"),
        ("m.test", "/foo/v2", {}, "v1"),
        ("m.test", "/", {"Version": "two"}, "v1"),
        ("x1.test", "/", {}, "v1"),
        ("x1.test", "/v2", {}, "v2"),
        ("x2.test", "/v2", {}, "v1"),
        ("x1.test", "/v2/example", {}, "v2"),
        ("x2.test", "/", {"version": "two"}, "v1"),
        ("o.test", "/match/exact/one", {}, "v3"),
        ("o.test", "/match/exact", {}, "v2"),
        ("o.test", "/match/exact/", {}, "v1"),
        ("o.test", "/match", {}, "v1"),
        ("o.test", "/match/prefix/one/any", {}, "v2"),
        ("o.test", "/match/prefix/one", {}, "v2"),
        ("o.test", "/match/prefix/any", {}, "v3"),
        ("o.test", "/regex/abc", {}, "v2"),
        ("o.test", "/regex/abc?x=1", {}, "v2"),
        ("o.test", "/regex/abc/1", {}, "v1"),
        ("o.test", "/regex/ABC", {}, "v1"),
        ("t.test", "/", {"X-Color": "green"}, "v2"),
        ("t.test", "/", {"x-color": "greenish"}, None),
        ("t.test", "/?animal=whale", {}, "v2"),
        ("t.test", "/?animal=a-whale", {}, None),
        ("t.test", "/?animal=dolphin", {}, "v1"),
        ("t.test", "/?animal=dolphin&color=blue", {}, "v3"),
        ("t.test", "/?color=blue&animal=dolphin", {}, "v3"),
        ("t.test", "/?animal=dolphins", {}, None),
        ("t.test", "/?Animal=dolphin", {}, None),
        ("t.test", "/", {"x-two": "a"}, "v3"),
        ("t.test", "/", {"x-two": "b"}, None),
        ("t.test", "/", {}, None),
        ("one.wild.test", "/", {}, "v1"),
        ("ONE.Wild.Test", "/", {}, "v1"),
        ("one.wild.test:8080", "/", {}, "v1"),
        ("two.one.wild.test", "/", {}, "v1"),
        ("one.deep.wild.test", "/", {}, "v2"),
        ("very.deep.wild.test", "/", {}, "v3"),
        ("deep.wild.test", "/", {}, "v1"),
        ("wild.test", "/", {}, None),
        ("onewild.test", "/", {}, None),
        ("unknown.test", "/", {}, None),
        ("a.b.fall.test", "/a/x", {}, "v1"),
        ("a.b.fall.test", "/b/x", {}, "v2"),
        ("a.b.fall.test", "/c", {}, "v3"),
        ("c.b.fall.test", "/a/x", {}, "v2"),
        ("c.b.fall.test", "/a", {}, "v3"),
        ("b.fall.test", "/b", {}, "v3"),
        ("a.b.fall.test", "/everywhere", {}, "v3"),
        ("fall.test", "/everywhere", {}, "v1"),
        ("very.deep.wild.test", "/everywhere", {}, "v3"),
        ("m.test", "/everywhere", {}, "v1"),
        ("o.test", "/everywhere", {}, "v1"),
        ("codes.test", "/everywhere", {}, "v1"),
    ],
)
def test_the_match_with_precedence(
    routed: Routed, host: str, asked: str, headers: dict[str, str], wanted: str | None
) -> None:
    got = routed.get(host, asked, headers)
    assert got.backend == wanted
    assert got.status == (200 if wanted else 404)


def preflight(routed: Routed, name: str, origin: str, method: str = "GET") -> Any:
    headers = {"Origin": origin, "access-control-request-method": method, "access-control-request-headers": "x-asked"}
    got = routed.get(f"{name}.cors.test", "/", headers, "OPTIONS")
    assert (got.status, got.backend) == (200, None)
    return {key.removeprefix("access-control-"): value for key, value in got.headers.items() if "control" in key}


@pytest.mark.parametrize("origin", ["https://www.foo.com", "https://www.bar.com", "https://xpto.www.bar.com"])
def test_browsers_learn_which_origins_may_read_answers(routed: Routed, origin: str) -> None:
    assert preflight(routed, "listed", origin) == {
        "allow-origin": origin,
        "allow-methods": "GET, OPTIONS",
        "allow-headers": "x-header-1, x-header-2",
        "expose-headers": "x-header-3, x-header-4",
        "max-age": "3600",
        "allow-credentials": "true",
    }
    got = routed.get("listed.cors.test", "/", {"Origin": origin})
    assert got.backend == "v1"
    assert got.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize(
    "origin",
    ["https://foobar.com", "https://bar.com", "https://wwwxfoo.com", "http://www.foo.com", "https://x/.bar.com"],
)
def test_other_origins_may_not(routed: Routed, origin: str) -> None:
    assert "allow-origin" not in preflight(routed, "listed", origin)
    got = routed.get("listed.cors.test", "/", {"Origin": origin})
    assert got.backend == "v1"
    assert "access-control-allow-origin" not in got.headers


def test_wildcards_mean_what_browsers_read(routed: Routed) -> None:
    headers = preflight(routed, "any-method", "https://www.foo.com", "POST")
    assert (headers["allow-methods"], headers["max-age"]) == ("POST", "5")
    assert "allow-credentials" not in headers
    headers = preflight(routed, "any-origin", "http://other.test:8080", "PUT")
    assert (headers["allow-origin"], headers["allow-headers"]) == ("http://other.test:8080", "x-asked")
    assert preflight(routed, "any-secure", "https://a.test")["allow-origin"] == "https://a.test"
    assert "allow-origin" not in preflight(routed, "any-secure", "http://a.test")
    headers = preflight(routed, "all", "https://a.test")
    assert (headers["allow-origin"], headers["allow-methods"], headers["allow-headers"]) == (
        "https://a.test",
        "GET",
        "x-asked",
    )


def test_an_allowed_origin_does_not_bypass_policies(routed: Routed) -> None:
    origin = "https://www.foo.com"
    assert preflight(routed, "guarded", origin)["allow-origin"] == origin
    for method in ("GET", "OPTIONS", "DELETE"):
        got = routed.get("guarded.cors.test", "/", {"Origin": origin}, method)
        assert (got.status, got.backend) == (403, None)
        # A page may read the denial.
        assert got.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unsupported_filter_closes_only_its_own_rule(routed: Routed, name: str) -> None:
    """Envoy runs, so it did not get anything that it would refuse."""
    asked = f"/{'a' * 400}" if name == "unending" else "/"
    for method, body in (("GET", b""), ("POST", b"x")):
        got = routed.get(f"{name}.closed.test", asked, method=method, body=body)
        assert (got.status, got.backend) == (500, None)
    subjects = [str(diagnostic.reference) for diagnostic in routed.resources.diagnostics if diagnostic.code == "TW655"]
    assert f"HTTPRoute/prod/closed-{name}" in subjects


@pytest.mark.parametrize("number", range(len(PATTERNS)))
def test_a_pattern_that_envoy_would_refuse_matches_nothing(routed: Routed, number: int) -> None:
    host = f"n{number}.test"
    for text in ("", "a" * 1000, "a" * 100 + "x", "(", "a", "1"):
        assert routed.get(host, f"/{text}", {"x": text or "y"}).status == 404
        assert routed.get(host, f"/?x={text}").status == 404
    assert routed.get(host, "/fine").backend == "v3"


# ---- Precedence, against a reference that follows the specification.
PATHS = ("/", "/a", "/a/", "/a/b", "/a/b/c", "/b")
REQUESTS = ("/", "/a", "/a/", "/a/b", "/a/b/", "/a/b/c/d", "/b", "/ab", "/c")


def some_match(dice: random.Random) -> Object:
    out: Object = {}
    if dice.random() < 0.9:
        out |= path(dice.choice(PATHS), dice.choice(("PathPrefix", "PathPrefix", "Exact")))
    if dice.random() < 0.3:
        out["method"] = dice.choice(("GET", "POST"))
    for field, names in (("headers", ("x-h", "x-i")), ("queryParams", ("q", "r"))):
        chosen = [name for name in names if dice.random() < 0.25]
        if chosen:
            out[field] = [{"name": name, "value": dice.choice("12")} for name in chosen]
    return out


def some_routes(seed: int) -> list[Object]:
    dice = random.Random(seed)
    names = [f"s{seed}-{letter}" for letter in "abcd"]
    dice.shuffle(names)
    return [
        route(
            name,
            f"s{seed}.test",
            [
                rule([some_match(dice) for _ in range(dice.randint(1, 2))], dice.choice(SERVICES))
                for _ in range(dice.randint(1, 3))
            ],
            created=dice.randint(1, 2),
        )
        for name in names
    ]


def test_random_routes_have_the_precedence_of_the_specification() -> None:
    worlds = {seed: some_routes(seed) for seed in range(40)}
    running = Routed([route for routes in worlds.values() for route in routes])
    dice = random.Random(1)
    backends = set()
    try:
        for seed, routes in worlds.items():
            for _ in range(25):
                asked, method = dice.choice(REQUESTS), dice.choice(("GET", "POST", "PUT"))
                headers = {name: dice.choice("12") for name in ("x-h", "x-i") if dice.random() < 0.5}
                query = {name: dice.choice("12") for name in ("q", "r") if dice.random() < 0.5}
                text = "&".join(f"{name}={value}" for name, value in query.items())
                got = running.get(f"s{seed}.test", f"{asked}?{text}" if text else asked, headers, method)
                request = Request(f"s{seed}.test", asked, method, headers, query)
                chosen = best(routes, request)
                wanted = chosen[0]["spec"]["rules"][chosen[1]]["backendRefs"][0]["name"] if chosen else None
                assert got.backend == wanted, (routes, request)
                backends.add(got.backend)
    finally:
        running.close()
    assert backends == {*SERVICES, None}


def test_timeouts() -> None:
    listening, address = silent()
    rules = [
        rule(path("/request"), "v1", timeouts={"request": "100ms"}),
        rule(path("/backend"), "v1", timeouts={"backendRequest": "100ms"}),
        rule(path("/both"), "v1", timeouts={"request": "200ms", "backendRequest": "50ms"}),
        rule(path("/v2"), "v2", timeouts={"request": "0s"}),
    ]
    running = Routed([route("slow", "slow.test", rules)], {"Service/prod/v1": address})
    try:
        for name in ("request", "backend", "both"):
            assert running.get("slow.test", f"/{name}").status == 504
        assert running.get("slow.test", "/v2").backend == "v2"
    finally:
        running.close()
        listening.close()


def test_policies_see_the_original_request() -> None:
    """They see it before a rewrite, as the model does: a question has one path and one host, the client's."""
    reference = {"group": NETWORKING, "kind": "XBackend", "name": "tools"}
    there = {"type": "URLRewrite", "urlRewrite": {"path": prefix("/inside"), "hostname": "inside.test"}}
    rules = [
        {"matches": [path("/outside")], "filters": [there], "backendRefs": [reference]},
        {"matches": [path("/inside")], "backendRefs": [reference]},
    ]
    allowed = {"authorization": {"type": "Inline", "paths": [{"value": "/outside"}], "hosts": ["p.test"]}}
    tools = [behind("tools")[0], route("tools", ["p.test", "inside.test"], rules)]
    running = Routed([*tools, policy("by-path", "tools", [allowed])])
    try:
        for host in ("p.test", "inside.test"):
            for asked in ("/outside", "/outside/x?y=z", "/inside", "/inside/x"):
                question = {
                    "gateway": "prod/gate",
                    "listener": "web",
                    "backend": "prod/tools",
                    "http": {"method": "GET", "path": asked, "host": host},
                }
                got = running.get(host, asked)
                verdict = ask(running.snapshot, ToolQuestion.from_dict(question)).verdict
                assert verdict == ("Allow" if asked.startswith("/outside") and host == "p.test" else "Deny")
                assert (got.request is not None) is (verdict == "Allow")
                if got.request is not None:
                    assert got.path == asked.replace("outside", "inside")
                    assert got.request.headers["host"] == "inside.test"
    finally:
        running.close()


def test_an_external_backend_gets_its_own_host_name() -> None:
    outside, inside = behind("outside")[0], behind("inside")[0]
    outside["spec"]["mcp"] = {"hostname": "mcp.example.org", "port": 443}
    there, here = ({"group": NETWORKING, "kind": "XBackend", "name": name} for name in ("outside", "inside"))
    other = {"type": "URLRewrite", "urlRewrite": {"hostname": "other.test"}}
    rules = [
        {"matches": [path("/outside")], "backendRefs": [there]},
        {"matches": [path("/inside")], "backendRefs": [here]},
        {"matches": [path("/either")], "backendRefs": [here, there]},
        {"matches": [path("/other")], "backendRefs": [here, there], "filters": [other]},
        {"matches": [path("/one")], "backendRefs": [there], "filters": [other]},
    ]
    # Policies see the host that the client asked for.
    allowed = {"authorization": {"type": "Inline", "hosts": ["gate.test"]}}
    running = Routed([outside, inside, route("o", "gate.test", rules), policy("by-host", "outside", [allowed])])

    def hosts(asked: str) -> set[str]:
        requests = [running.get("gate.test", asked).request for _ in range(20)]
        return {request.headers["host"] for request in requests if request is not None}

    try:
        assert hosts("/outside") == {"mcp.example.org"}
        assert hosts("/inside") == {"gate.test"}
        assert hosts("/either") == {"gate.test", "mcp.example.org"}
        assert hosts("/other") == hosts("/one") == {"other.test"}
    finally:
        running.close()


HOSTS = {"deep": "*.a.test", "exact": "x.a.test", "bare": "*.test"}


@pytest.fixture(scope="module")
def shared_port() -> Iterator[Routed]:
    """Return four listeners on one port, for all hosts and for three host names, with some routes and policies."""
    everywhere = [{"backendRefs": to("v1")}]
    routes = [
        route("web", "*", everywhere, "web"),
        route("web-exact", "x.a.test", [{"backendRefs": to("v2")}], "web"),
        route("deep", "*", [{"backendRefs": to("v2")}], "deep"),
        route("deep-exact", "x.a.test", [{"backendRefs": to("v1")}], "deep"),
        route("exact", "*", [{"matches": [{"path": {"value": "/only"}}], "backendRefs": to("v3")}], "exact"),
    ]
    target = {"group": GATEWAY_API, "kind": "Gateway", "name": "gate", "sectionName": "deep"}
    closed = policy("closed", "none", [{"authorization": {"type": "Inline", "paths": [{"value": "/let"}]}}])
    closed["spec"]["targetRefs"] = [target]
    served = Routed([*routes, closed], hosts=HOSTS)
    yield served
    served.close()


@pytest.mark.parametrize(
    ("host", "path", "backend", "status"),
    [
        ("other", "/", "v1", 200),  # the listener without a host name
        ("y.a.test", "/let", "v2", 200),  # the most specific wildcard, and its listener's policy
        ("y.a.test", "/", None, 403),
        ("z.y.a.test", "/let", "v2", 200),
        ("x.a.test", "/only", "v3", 200),  # the exact name, whichever other routes have it; no policy there
        ("X.A.test", "/only", "v3", 200),
        ("x.a.test", "/", None, 404),
        ("b.test", "/", None, 404),  # a listener without routes still has its hosts
        ("a.test", "/", None, 404),
        ("test", "/", "v1", 200),  # a wildcard does not match its own suffix
    ],
)
def test_a_request_belongs_to_the_listener_with_the_most_specific_host_name(
    shared_port: Routed, host: str, path: str, backend: str | None, status: int
) -> None:
    got = shared_port.get(host, path)
    assert (got.backend, got.status) == (backend, status)
