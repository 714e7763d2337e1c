"""Lists show exactly what `backend.mcp.authorization` lets a caller use, at a real Envoy (docs/gateway.md#backends)."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.engines.test_envoy_responses import ends, wait_for_line
from tests.engines.test_envoy_settings import jwt, rules, token
from tests.labs.envoy_lab import PATH, Lab, lab
from tests.labs.waiting import PATIENCE_S
from tests.randomness import seeds
from tierwall.engines.envoy.config.options import SocketAddress
from tierwall.engines.envoy.config.settings.item_rules import ItemRules
from tierwall.engines.envoy.control import item_view
from tierwall.engines.envoy.control.item_view import ItemView, request_variables

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
Object = dict[str, Any]
HTTP = "gateway.networking.k8s.io/v1"
LISTS = {
    "tools/list": ("tools", "name", "tools/call", ["add", "rm", "rm-all", "hé"]),
    "prompts/list": ("prompts", "name", "prompts/get", ["add", "hello"]),
    "resources/list": ("resources", "uri", "resources/read", ["file:///a", "file:///add"]),
}
EXPRESSIONS = (
    "mcp.tool.name == 'add'",
    "mcp.tool.name.startsWith('rm')",
    "mcp.tool.name in ['rm-all', 'hé'] && mcp.tool.target == 'tools'",
    "has(mcp.tool)",
    "mcp.prompt.name == 'hello' || mcp.tool.name == 'add'",
    "has(mcp.resource) && mcp.resource.name.endsWith('add')",
    "request.headers['x-team'] == 'a'",
    "request.headers['x-team'] != 'a' && mcp.tool.name == 'rm'",
    "!(request.headers['x-team'] == 'b')",
    "jwt.sub == 'ann'",
    "jwt.level >= 3 && has(mcp.prompt)",
    "has(jwt.sub) && mcp.tool.name.contains(jwt.sub)",
    "'dev' in jwt.groups",
    "request.method == 'POST' && request.path.endsWith('mcp')",
    "cidr('127.0.0.0/8').containsIP(source.address) && mcp.tool.name != 'rm'",
    "source.address == '10.1.2.3'",
    "request.headers['x-none'] == 'a'",
    "size(",
    "true",
)
CALLERS: tuple[Object, ...] = (
    {},
    {"x-team": "a"},
    {"x-team": "b", "authorization": token(sub="ann", level=3, groups=["dev"])},
    {"authorization": token(sub="add", level=2.5, groups=[])},
)


def to_route(name: str, section: str, value: Object) -> Object:
    ref = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "orders"}
    return agentgateway("AgentgatewayPolicy", name, {"targetRefs": [ref], section: value})


def agentgateway(kind: str, name: str, spec: Object) -> Object:
    version = "agentgateway.dev/v1alpha1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": spec}


def tools_backend(policies: Object) -> list[Object]:
    """A server whose rules are its own, below `/tools`."""
    target = {"name": "tools", "static": {"host": "tools.example", "port": 80, "path": PATH}}
    ref = {"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": "tools"}
    rule = {"matches": [{"path": {"value": "/tools"}}], "backendRefs": [ref]}
    spec = {"parentRefs": [{"name": "agents"}], "rules": [rule]}
    return [
        agentgateway("AgentgatewayBackend", "tools", {"mcp": {"targets": [target]}, "policies": policies}),
        {"apiVersion": HTTP, "kind": "HTTPRoute", "metadata": {"name": "tools", "namespace": "shop"}, "spec": spec},
    ]


@pytest.fixture(scope="module")
def running(needs_envoy: None) -> Iterator[Lab]:
    with lab() as started:
        here = SocketAddress("127.0.0.1", started.backend.port)
        known = {**started.options.endpoints, "AgentgatewayBackend/shop/tools": here}
        started.options = replace(started.options, endpoints=known)
        started.controller = started.new_controller()
        for method, (key, name, _, names) in LISTS.items():
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {key: [{name: each} for each in names]}})
            started.backend.replies[method] = {"content-type": "application/json"}, body.encode()
        yield started


def ask(running: Lab, method: str, params: Object, headers: Object, path: str = PATH) -> Object:
    connection = http.client.HTTPSConnection(
        "localhost", running.port, context=running.context("shopper"), timeout=PATIENCE_S
    )
    given = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    connection.request("POST", path, json.dumps(message).encode(), given)
    answer: Object = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def shown(running: Lab, method: str, headers: Object, path: str = PATH) -> list[str] | None:
    key, name, _, _ = LISTS[method]
    answer = ask(running, method, {}, headers, path)
    return [entry[name] for entry in answer["result"][key]] if "result" in answer else None


def usable(running: Lab, method: str, headers: Object, path: str = PATH) -> list[str]:
    _, name, use, names = LISTS[method]
    return [each for each in names if "result" in ask(running, use, {name: each}, headers, path)]


def some_rules(dice: Random, number: int) -> Object:
    texts = dice.sample(EXPRESSIONS, dice.randint(1, 3))
    return {"mcp": {"authorization": rules(*texts, action=("Allow", "Deny", "Require")[number % 3])}}


def test_lists_show_what_may_be_used_under_random_rules(running: Lab) -> None:
    seen: Counter[Any] = Counter()
    for seed in seeds(4):
        dice = Random(seed)
        objects = [to_route("tokens", "traffic", {"jwtAuthentication": jwt(mode="Optional")})]
        objects += [
            to_route(f"p{at}", "backend", some_rules(dice, dice.randrange(3))) for at in range(dice.randint(1, 3))
        ]
        running.publish(objects)
        running.programmed()
        for headers in CALLERS:
            for method, (_, _, _, names) in LISTS.items():
                wanted = usable(running, method, headers)
                assert shown(running, method, headers) == wanted, (objects, headers, method)
                seen["all" if len(wanted) == len(names) else "some" if wanted else "none"] += 1
    assert all(seen[kind] for kind in ("all", "some", "none")), seen


def test_the_rules_of_an_agentgateway_backend_cut_its_lists_alone(running: Lab) -> None:
    running.publish(
        tools_backend({"mcp": {"authorization": rules("mcp.tool.target == 'tools' && mcp.tool.name == 'add'")}})
    )
    running.programmed()
    for path in ("/tools", "/tools/anything"):
        assert shown(running, "tools/list", {}, path) == usable(running, "tools/list", {}, path) == ["add"]
        assert shown(running, "prompts/list", {}, path) == []
    assert shown(running, "tools/list", {}) == LISTS["tools/list"][3]


def test_a_client_cannot_choose_the_rules(running: Lab) -> None:
    values = rules("false"), rules("true")
    names = [ItemRules.of([value], "tools").name for value in values]
    running.publish(tools_backend({"mcp": {"authorization": values[0]}}))
    running.programmed()
    for name in names:
        assert shown(running, "tools/list", {"x-tierwall-items": name}, "/tools") == []
    # Where there are no rules, none are made up.
    assert shown(running, "tools/list", {"x-tierwall-items": names[0]}) == LISTS["tools/list"][3]


def test_a_stream_of_the_server_is_cut_too(running: Lab) -> None:
    running.publish(tools_backend({"mcp": {"authorization": rules("mcp.tool.name == 'add'")}}))
    running.programmed()
    event = running.backend.replies["tools/list"][1]
    running.backend.page = (
        200,
        {"content-type": "text/event-stream", "connection": "close"},
        b"data: " + event + b"\n\n",
    )
    connection = http.client.HTTPSConnection(
        "localhost", running.port, context=running.context("shopper"), timeout=PATIENCE_S
    )
    connection.request("GET", "/tools", headers={"accept": "text/event-stream"})
    body = connection.getresponse().read()
    running.backend.page = None
    connection.close()
    assert [each["name"] for each in json.loads(body.partition(b"data: ")[2])["result"]["tools"]] == ["add"]


def test_a_stream_ends_when_the_rules_that_cut_its_lists_change(running: Lab) -> None:
    adding = tools_backend({"mcp": {"authorization": rules("mcp.tool.name == 'add'")}})
    running.publish(adding)
    running.programmed()
    context = running.context("shopper")
    with closing(http.client.HTTPSConnection("localhost", running.port, context=context, timeout=PATIENCE_S)) as client:
        client.request("GET", "/tools", headers={"accept": "text/event-stream"})
        stream = client.getresponse()
        assert (stream.readline(), stream.readline()) == (b"data: {}\n", b"\n")
        # Rules elsewhere do not concern it.
        running.publish([*adding, to_route("other", "backend", {"mcp": {"authorization": rules("true")}})])
        running.programmed()
        with pytest.raises(TimeoutError):
            wait_for_line(stream)
        running.publish(tools_backend({"mcp": {"authorization": rules("mcp.tool.name == 'rm'")}}))
        assert ends(stream)


def test_rules_that_nobody_knows_show_nothing(running: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    running.publish(tools_backend({"mcp": {"authorization": rules("true")}}))
    running.programmed()
    monkeypatch.setattr(running.controller, "rules_of", lambda name: None)
    assert shown(running, "tools/list", {}, "/tools") is None


def test_a_long_list_costs_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_view, "MOST_EVALUATIONS", 5)
    may = ItemView(ItemRules.of([rules("true", "mcp.tool.name == 'x'")], "t"), request_variables({}, None, ""))
    is_shown = may.shown("tools/call")
    assert [is_shown(name) for name in ("a", "a", "b", "c", "a")] == [True, True, True, False, True]
    assert not may.shown("prompts/get")("n" * 10_001)


def test_costly_rules_cost_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = ", ".join(map(str, range(50)))
    costly = f"[{numbers}].all(x, [{numbers}].all(y, x + y >= 0)) && mcp.tool.name != ''"
    # Nobody knows whether such a rule is true, so nothing is shown, whatever its action.
    for action in ("Allow", "Deny", "Require"):
        view = ItemView(ItemRules.of([rules(costly, action=action)], "t"), request_variables({}, None, ""))
        monkeypatch.setattr(item_view, "MOST_UNITS", 1_000)
        assert not view.shown("tools/call")("a")
        monkeypatch.setattr(item_view, "MOST_UNITS", 1_000_000)
        assert view.shown("tools/call")("a") is (action != "Deny")
    asked = iter((False, True))
    monkeypatch.setattr(item_view, "CpuLimit", lambda seconds: SimpleNamespace(is_reached=next(asked)))
    late = ItemView(ItemRules.of([rules("mcp.tool.name != ''")], "t"), request_variables({}, None, ""))
    assert [late.shown("tools/call")(name) for name in "ab"] == [True, False]
