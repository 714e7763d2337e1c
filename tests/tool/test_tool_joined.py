"""Names at backends that join MCP servers (docs/tool.md#how-a-request-is-decided)."""

from __future__ import annotations

from typing import Any

import pytest

import tierwall
from tests.worlds.tool_objects import AGENT, BASE, GATEWAY_API, gateway, manifest, on_gateway, v1
from tierwall.core.verdict import Verdict
from tierwall.tool.joined import joined_item, joined_name, target_names
from tierwall.tool.protocol import encoded_name
from tierwall.tool.question import ToolQuestion

BACKEND = "AgentgatewayBackend/prod/all"
GRANTED = [{"name": "tools/call", "params": ["pay"]}, {"name": "resources/read", "params": ["file:///a"]}]


def world(**mcp: Any) -> tierwall.World:
    targets = [{"name": name, "static": {"host": f"{name}.example", "port": 80}} for name in ("bank", "shop.eu")]
    backend = manifest("agentgateway.dev/v1alpha1", "AgentgatewayBackend", "all", {"mcp": {"targets": targets, **mcp}})
    ref = {"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": "all"}
    spec = {"parentRefs": [{"name": "prod-gateway"}], "rules": [{"backendRefs": [ref]}]}
    policy = v1("p", on_gateway(), {"authorization": {"type": "Inline", "mcp": {"methods": GRANTED, **BASE}}})
    route = manifest(f"{GATEWAY_API}/v1", "HTTPRoute", "r", spec)
    return tierwall.load(objects=[gateway(), backend, route, policy])


def ask(asked: tierwall.World, method: str, **fields: Any) -> tierwall.Answer:
    question = {"gateway": "prod/prod-gateway", "backend": BACKEND, "caller": AGENT, "method": method, **fields}
    return asked.ask(ToolQuestion.from_dict(question))


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"tool": "bank_pay"}, Verdict.ALLOW),
        ({"tool": "shop.eu_pay"}, Verdict.ALLOW),
        ({"tool": "bank_rm"}, Verdict.DENY),
        ({"tool": "pay"}, Verdict.DENY),
        ({"tool": "elsewhere_pay"}, Verdict.DENY),
        ({"tool": "bank_"}, Verdict.DENY),
        ({"tool": "bank_bank_pay"}, Verdict.DENY),
        ({"method": "resources/read", "uri": "shop.eu+file:///a"}, Verdict.ALLOW),
        ({"method": "resources/read", "uri": "file:///a"}, Verdict.DENY),
        ({"method": "tools/list"}, Verdict.ALLOW),
    ],
)
def test_rules_are_about_the_names_that_servers_give(fields: dict[str, Any], verdict: Verdict) -> None:
    assert ask(world(), **{"method": "tools/call", **fields}).verdict is verdict


def test_a_name_of_no_server_is_told_from_a_denied_tool() -> None:
    answer = ask(world(), "tools/call", tool="pay")
    note = "`pay` names no server of AgentgatewayBackend/prod/all: names there begin with `bank_` and `shop.eu_`"
    assert (answer.steps[0].reason, answer.steps[0].note) == ("NotReadAsMcp", note)
    assert (
        "may call tool pay of bank at AgentgatewayBackend/prod/all"
        in ask(world(), "tools/call", tool="bank_pay").sentence
    )


@pytest.mark.parametrize(("said", "verdict"), [("bank_pay", Verdict.ALLOW), ("pay", Verdict.DENY)])
def test_the_header_names_the_tool_as_the_message_does(said: str, verdict: Verdict) -> None:
    headers = {"Mcp-Name": encoded_name(said)}
    assert ask(world(), "tools/call", tool="bank_pay", http={"headers": headers}).verdict is verdict


def test_names_have_prefixes_where_servers_are_joined() -> None:
    for mcp, tool in (({}, "bank_pay"), ({"prefixMode": "Always"}, "bank_pay"), ({"prefixMode": "Never"}, "pay")):
        assert ask(world(**mcp), "tools/call", tool=tool).verdict is Verdict.ALLOW
    rows = {row.tool: row.verdict for row in world().grants(AGENT, tools=["bank_rm", "pay"]).rows}
    assert rows == {
        "bank_pay": Verdict.ALLOW,
        "bank_rm": Verdict.DENY,
        "shop.eu_pay": Verdict.ALLOW,
        "*": Verdict.DENY,
    }


def test_what_a_joined_name_means() -> None:
    targets = ("a", "b-c")
    assert joined_item(targets, "a_x_y", None) == ("a", "x_y", None)
    assert joined_item(targets, None, "b-c+x+y") == ("b-c", None, "x+y")
    assert joined_item(targets, "a_x", "a+y") == ("a", "x", "y")
    for tool, uri in ((None, None), ("a", None), ("a_", None), ("b_x", None), ("a_x", "b-c+y"), ("a_x", "y")):
        assert joined_item(targets, tool, uri) is None
    assert joined_name(targets, "a+x", is_uri=True) == ("a", "x")
    assert joined_name(targets, "a+x", is_uri=False) is None
    (gateway_object,) = tierwall.load(objects=[gateway()]).snapshot.of_kind(GATEWAY_API, "Gateway")
    assert target_names(gateway_object) == ()
