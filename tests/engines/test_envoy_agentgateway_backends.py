"""A real Envoy reaches AgentgatewayBackends and judges the items of MCP servers (docs/gateway.md#backends)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.test_envoy_settings import key_set, rules, token
from tests.labs.settings_lab import Answer, SettingsLab, settings_lab
from tests.worlds.gateway_settings import Object, gateway, policy, route, service

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
SERVERS = ("free", "tools", "denied", "required", "named", "kinds")


def backend(name: str, **spec: Any) -> Object:
    metadata = {"name": name, "namespace": "shop"}
    return {
        "apiVersion": "agentgateway.dev/v1alpha1",
        "kind": "AgentgatewayBackend",
        "metadata": metadata,
        "spec": spec,
    }


def server(name: str, **spec: Any) -> Object:
    target = {"name": "search", "static": {"host": "mcp.example", "port": 80, "path": "/v2/mcp"}}
    return backend(name, mcp={"targets": [target]}, **spec)


def to(name: str) -> list[Object]:
    return [{"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": name}]


@pytest.fixture(scope="module")
def lab() -> Iterator[SettingsLab]:
    names = ("plain", "whole", *SERVERS)
    ways = [{"name": name, "matches": [{"path": {"value": f"/{name}"}}], "backendRefs": to(name)} for name in names]
    ways += [{"name": "as-asked", "matches": [{"path": {"value": "/as-asked"}}], "backendRefs": to("plain")}]
    objects = [
        policy("host", "HTTPRoute/r", section="as-asked", traffic={"hostRewrite": {"mode": "None"}}),
        gateway(),
        service("keys"),
        route("r", ways),
        backend("plain", static={"host": "plain.example", "port": 8080}),
        # Not an MCP server, so the setting means nothing there.
        backend("whole", static={"host": "203.0.113.5", "port": 80}),
        policy("p-whole", "AgentgatewayBackend/whole", backend={"mcp": {"authorization": rules("false")}}),
        server("free"),
        server("tools", policies={"mcp": {"authorization": rules("mcp.tool.name == 'add'")}}),
        server("denied"),
        policy(
            "p-denied",
            "AgentgatewayBackend/denied",
            backend={"mcp": {"authorization": rules("mcp.tool.name.startsWith('rm')", action="Deny")}},
        ),
        server("required"),
        policy(
            "p-required",
            "AgentgatewayBackend/required",
            backend={"mcp": {"authorization": rules("request.headers['x-team'] == 'a'", action="Require")}},
        ),
        server("named"),
        policy(
            "p-named",
            "AgentgatewayBackend/named",
            backend={"mcp": {"authorization": rules("mcp.tool.target == 'search' && mcp.methodName == 'tools/call'")}},
        ),
        server("kinds"),
        policy(
            "p-kinds",
            "AgentgatewayBackend/kinds",
            backend={
                "mcp": {
                    "authorization": rules(
                        "mcp.prompt.name == 'hello'",
                        "mcp.resource.name == 'file:///a'",
                        "has(mcp.tool) && mcp.tool.name == 'add'",
                    )
                }
            },
        ),
    ]
    references = tuple(f"AgentgatewayBackend/shop/{name}" for name in names)
    with settings_lab(objects, references) as running:
        yield running


def ask(lab: SettingsLab, path: str, method: str, headers: dict[str, str] | None = None, **params: Any) -> Answer:
    message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    given = {"content_type": "application/json", "accept": "application/json, text/event-stream", **(headers or {})}
    return lab.send(path, "POST", json.dumps(message).encode(), **given)


def passes(answer: Answer) -> bool:
    """Whether a message reached the server; a denial is a JSON-RPC error with the id of the request."""
    body = json.loads(answer.body)
    if "error" in body:
        assert (answer.status, body["id"], body["error"]["code"]) == (200, 7, 403)
        return False
    assert answer.status == 200
    return True


def test_a_static_host_gets_its_own_host_name(lab: SettingsLab) -> None:
    answer = lab.send("/plain/x?y=1")
    assert (answer.status, answer.seen["host"]) == (200, "plain.example")
    assert lab.backend.paths[-1] == "/plain/x?y=1"
    assert lab.send("/as-asked", host="client.example").seen["host"] == "client.example"
    assert ask(lab, "/whole", "tools/call", name="anything").status == 200


def test_an_mcp_server_is_reached_by_its_path(lab: SettingsLab) -> None:
    assert passes(ask(lab, "/free", "tools/call", name="anything"))
    assert lab.backend.paths[-1] == "/v2/mcp"
    assert lab.send("/tools", "GET").status == 200
    assert lab.backend.paths[-1] == "/v2/mcp"


@pytest.mark.parametrize(
    ("path", "method", "params", "allowed"),
    [
        ("/tools", "tools/call", {"name": "add"}, True),
        ("/tools", "tools/call", {"name": "rm"}, False),
        ("/tools", "prompts/get", {"name": "add"}, False),
        ("/tools", "resources/read", {"uri": "file:///add"}, False),
        ("/tools", "tasks/get", {"taskId": "add"}, False),
        ("/tools", "tools/list", {}, True),
        ("/tools", "initialize", {}, True),
        ("/tools", "resources/list", {}, True),
        ("/denied", "tools/call", {"name": "add"}, True),
        ("/denied", "tools/call", {"name": "rm-all"}, False),
        ("/denied", "prompts/get", {"name": "rm-all"}, True),
        ("/named", "tools/call", {"name": "x"}, True),
        ("/named", "prompts/get", {"name": "x"}, False),
        ("/kinds", "tools/call", {"name": "add"}, True),
        ("/kinds", "tools/call", {"name": "hello"}, False),
        ("/kinds", "prompts/get", {"name": "hello"}, True),
        ("/kinds", "prompts/get", {"name": "add"}, False),
        ("/kinds", "resources/read", {"uri": "file:///a"}, True),
        ("/kinds", "resources/subscribe", {"uri": "file:///b"}, False),
        ("/kinds", "completion/complete", {"ref": {"type": "ref/prompt", "name": "hello"}, "argument": {}}, True),
        ("/kinds", "completion/complete", {"ref": {"type": "ref/prompt", "name": "other"}, "argument": {}}, False),
    ],
)
def test_rules_judge_each_item(lab: SettingsLab, path: str, method: str, params: Object, allowed: bool) -> None:
    assert passes(ask(lab, path, method, **params)) is allowed


def test_a_requirement_concerns_items_only(lab: SettingsLab) -> None:
    assert passes(ask(lab, "/required", "initialize"))
    assert not passes(ask(lab, "/required", "tools/call", name="add"))
    assert passes(ask(lab, "/required", "tools/call", {"x_team": "a"}, name="add"))


def test_what_is_no_message_cannot_be_judged(lab: SettingsLab) -> None:
    assert lab.send("/tools", "PUT", b"{}").status >= 400
    assert lab.send("/tools", "POST", b"not json", content_type="application/json").status >= 400
    assert not passes(ask(lab, "/tools", "unknown/method"))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"dynamicForwardProxy": {}}, "`spec.dynamicForwardProxy`"),
        ({"a2a": {"host": "a.example", "port": 80}}, "`spec.a2a`"),
        ({"static": {"unixPath": "/run/x.sock"}}, "unixPath"),
        ({"static": {"host": "127.0.0.1", "port": 15000}}, "machine of Envoy"),
        ({"static": {"host": "127.1", "port": 15000}}, "machine of Envoy"),
        ({"static": {"host": "a.localhost.", "port": 15000}}, "machine of Envoy"),
        ({"static": {"host": "::ffff:169.254.169.254", "port": 80}}, "machine of Envoy"),
        ({"mcp": {"targets": [{"name": "a", "selector": {"services": {}}}]}}, "without a host"),
        (
            {"mcp": {"targets": [{"name": "a", "static": {"host": "a", "port": 1, "protocol": "SSE"}}]}},
            "protocol SSE",
        ),
        (
            {"mcp": {"targets": [{"name": n, "static": {"host": "a", "port": 1, "path": "/a\r\nb"}} for n in "xy"]}},
            "control character in a path",
        ),
        (
            {
                "mcp": {
                    "prefixMode": "Never",
                    "targets": [{"name": name, "static": {"host": "a", "port": 1}} for name in "ab"],
                }
            },
            "`spec.mcp.prefixMode: Never` with several targets",
        ),
    ],
)
def test_a_backend_that_only_agentgateway_serves_is_closed(spec: Object, words: str) -> None:
    objects = [gateway(), route("r", [{"backendRefs": to("b")}]), backend("b", **spec)]
    with settings_lab(objects, ()) as running:
        assert running.send("/").status == 500
        assert any(words in str(problem.message) for problem in running.diagnostics)


def test_a_server_demands_a_token(lab: SettingsLab) -> None:
    authentication = {
        "issuer": "https://id",
        "audiences": ["tools"],
        "jwks": {"backendRef": {"name": "keys", "port": 80}, "jwksPath": "/keys"},
    }
    settings = {"mcp": {"authentication": authentication, "authorization": rules("jwt.sub == 'ann'")}}
    objects = [
        gateway(),
        service("keys"),
        route("r", [{"backendRefs": to("b")}]),
        server("b", policies=settings),
    ]
    with settings_lab(objects, ("AgentgatewayBackend/shop/b", "keys"), answers={"/keys": key_set()}) as running:
        assert ask(running, "/", "tools/call", name="add").status == 401
        assert ask(running, "/", "tools/call", {"authorization": token(sub="ann")}, name="add").status == 403
        ann, bob = ({"authorization": token(sub=name, aud="tools")} for name in ("ann", "bob"))
        assert passes(ask(running, "/", "tools/call", ann, name="add"))
        assert not passes(ask(running, "/", "tools/call", bob, name="add"))
        assert running.send("/", "GET").status == 401


def test_an_xbackend_is_an_mcp_server_too() -> None:
    group = "agentic.prototype.x-k8s.io"
    xbackend = {
        "apiVersion": f"{group}/v0alpha0",
        "kind": "XBackend",
        "metadata": {"name": "tools", "namespace": "shop"},
        "spec": {"mcp": {"serviceName": "one", "port": 80, "path": "/tools"}},
    }
    way = {"backendRefs": [{"group": group, "kind": "XBackend", "name": "tools"}]}
    judged = {"mcp": {"authorization": rules("mcp.tool.name == 'add' && mcp.tool.target == 'tools'")}}
    objects = [gateway(), service("one"), xbackend, route("r", [way]), policy("p", "HTTPRoute/r", backend=judged)]
    with settings_lab(objects, ("XBackend/shop/tools",)) as running:
        assert passes(ask(running, "/tools", "tools/call", name="add"))
        assert not passes(ask(running, "/tools", "tools/call", name="rm"))
        # Only its own path has a stream.
        assert (running.send("/tools").status, running.send("/admin").status) == (200, 403)


def test_no_copy_goes_past_the_rules_of_its_server() -> None:
    mirror = {"type": "RequestMirror", "requestMirror": {"backendRef": to("judged")[0]}}
    objects = [
        gateway(),
        server("judged", policies={"mcp": {"authorization": rules("false")}}),
        server("open"),
        route("r", [{"filters": [mirror], "backendRefs": to("open")}]),
    ]
    with settings_lab(objects, tuple(f"AgentgatewayBackend/shop/{name}" for name in ("judged", "open"))) as running:
        assert running.send("/").status == 500


def test_a_request_keeps_the_route_that_it_had_before_scripts_changed_its_headers() -> None:
    """One rule is about a header that is removed or changed on the way; the other leads to a backend that denies."""
    group = "agentic.networking.x-k8s.io"
    two = {"group": group, "kind": "XBackend", "name": "two"}
    metadata = {"name": "two", "namespace": "shop"}
    calls = {"type": "Inline", "mcp": {"methods": [{"name": "tools/call", "params": ["never"]}]}}
    denies = {"targetRefs": [two], "action": "Allow", "rules": [{"name": "r", "authorization": calls}]}
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "x", "a": "\u2028"}}
    # The line break becomes an escape on the way, so the message gets longer.
    body = json.dumps(message, ensure_ascii=False).encode()
    headers = {"mcp-name": "x", "mcp-method": "y", "content-length": str(len(body))}
    ways = [
        {"matches": [{"path": {"value": "/a"}, "headers": [{"name": name, "value": value}]}], "backendRefs": to("one")}
        for name, value in headers.items()
    ]
    objects = [
        gateway(),
        service("keys"),
        route("r", [*ways, {"matches": [{"path": {"value": "/a"}}], "backendRefs": [two]}]),
        server("one", policies={"mcp": {"authorization": rules("mcp.tool.name == 'x'")}}),
        {
            "apiVersion": f"{group}/v0alpha0",
            "kind": "XBackend",
            "metadata": metadata,
            "spec": {"mcp": {"serviceName": "keys", "port": 80, "path": "/a"}},
        },
        {"apiVersion": f"{group}/v1alpha1", "kind": "XAccessPolicy", "metadata": metadata, "spec": denies},
    ]
    kinds = {"content_type": "application/json", "accept": "application/json, text/event-stream"}
    with settings_lab(objects, ("AgentgatewayBackend/shop/one", "XBackend/shop/two")) as running:
        assert running.send("/a").status == 403
        assert json.loads(running.send("/a", "POST", body + b" ", **kinds).body)["error"]["code"] == 403
        assert running.send("/a", "POST", body, **kinds).seen["host"] == "mcp.example"
        for name in ("mcp_name", "mcp_method"):
            assert (
                running.send("/a", "GET", None, **{name: headers[name.replace("_", "-")]}).seen["host"] == "mcp.example"
            )
        assert set(running.backend.paths) == {"/v2/mcp"}
