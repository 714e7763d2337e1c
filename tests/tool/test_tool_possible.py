"""`possible` never contradicts a decision, whatever is still unknown of the request."""

from __future__ import annotations

import random

from hypothesis import given, settings

from tests.randomness import examples
from tests.worlds.tool_objects import (
    AGENT,
    BASE,
    Object,
    backend,
    calls,
    cel,
    gateway,
    mcp,
    on_backend,
    on_gateway,
    route,
    sa,
    v1,
)
from tests.worlds.tool_worlds import HEADERS, HOSTS, TOOLS, World, seeds, snapshot
from tierwall.core.verdict import Verdict
from tierwall.tool.decide import decide
from tierwall.tool.grants import Grants, grants, known_tools
from tierwall.tool.model import model
from tierwall.tool.possible import OTHER, possible
from tierwall.tool.request import tool_request
from tierwall.tool.ways import unrouted_ways

VERDICTS = (Verdict.ALLOW, Verdict.DENY)


@given(seeds)
@settings(max_examples=examples(100))
def test_what_is_always_or_never_possible_is_so_in_every_case(seed: int) -> None:
    world, chance = World(seed), random.Random(seed)
    loaded = snapshot(world.objects)
    for way in unrouted_ways(loaded):
        stack = model(loaded).stack(way.gateway, way.listener, way.resource)
        caller = chance.choice((None, "spiffe://cluster.local/ns/a/sa/one"))
        known = sorted({*known_tools(stack, way.backend), *TOOLS})
        for tool in (*chance.sample(known, 2), OTHER):
            possibility = possible(stack, tool_request(way.backend, caller, "tools/call", tool, port=way.listener.port))
            name = "a-name-that-no-rule-has" if tool == OTHER else tool
            for _ in range(4):
                full_request = tool_request(
                    way.backend,
                    caller,
                    "tools/call",
                    name,
                    host=chance.choice((None, *HOSTS)),
                    headers=chance.choice(HEADERS),
                    port=way.listener.port,
                )
                if full_request.unreadable:
                    continue  # what a gateway refuses whatever policies say
                policies = [policy for tier in stack for policy in tier.policies]
                answers = {policy.reference: chance.choice(VERDICTS) for policy in policies}
                verdict = decide(stack, full_request, answers).verdict
                assert possibility.verdict in (Verdict.CONDITIONAL, verdict)
            assert (possibility.verdict is Verdict.CONDITIONAL) is bool(possibility.conditions)


def listed(*policies: Object) -> Grants:
    objects = [gateway(), backend(), route("r", "prod-gateway", "payment-service"), *policies]
    return grants(snapshot(objects), AGENT)


def words(granted: Grants) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {row.tool: (str(row.verdict), row.conditions) for row in granted.rows}


def test_tools_are_known_from_policies_of_both_levels() -> None:
    granted = listed(
        v1("g", on_gateway(), {"authorization": mcp(calls("a", "b"))}),
        v1("b", on_backend(), {"source": sa(), "authorization": mcp(calls("b", "c"))}),
    )
    assert {name: verdict for name, (verdict, _) in words(granted).items()} == {
        "a": "Deny",
        "b": "Allow",
        "c": "Deny",
        "*": "Deny",
    }
    assert [str(decider) for decider in granted.rows[1].decided_by] == [
        "XAccessPolicy/prod/g rules[0] (r0)",
        "XAccessPolicy/prod/b rules[0] (r0)",
    ]
    assert [str(decider) for decider in granted.rows[0].decided_by] == ["XAccessPolicy/prod/b spec"]
    assert granted.rows[0].initialize.verdict is Verdict.DENY


def test_tools_are_known_from_expressions_and_annotations() -> None:
    annotated = backend()
    annotated["metadata"]["annotations"] = {"tierwall.io/tools": "look, touch  take"}
    expression = cel("request.mcp.tool_name in ['add', 'sub'] && request.headers['x-env'] == 'prod'")
    loaded = snapshot(
        [
            gateway(),
            annotated,
            route("r", "prod-gateway", "payment-service"),
            v1("p", on_gateway(), {"authorization": expression}),
        ]
    )
    granted = grants(loaded, AGENT)
    assert [row.tool for row in granted.rows] == ["add", "look", "sub", "take", "touch", "*"]
    assert words(granted)["add"] == ("Conditional", ('request.headers["x-env"] == "prod"',))
    assert words(granted)["look"] == words(granted)["*"] == ("Deny", ())


def test_other_tools_may_pass_under_a_condition_on_their_name() -> None:
    granted = listed(v1("p", on_gateway(), {"authorization": cel("request.mcp.tool_name.startsWith('get_')")}))
    assert words(granted) == {"*": ("Conditional", ('request.mcp.tool_name.startsWith("get_")',))}


def test_conditions_name_hosts_headers_and_authorizers() -> None:
    matchers = {"hosts": ["x.org"], "headers": [{"name": "X-Env", "value": "prod"}]}
    granted = listed(
        v1("a", on_gateway(), {"authorization": {**mcp(calls("pay"), **BASE), **matchers}}),
        v1("b", on_gateway(), {"authorization": mcp(calls("pay"))}, action="ExternalAuth"),
    )
    assert words(granted)["pay"] == (
        "Conditional",
        ("the host is x.org and header x-env: prod", "the authorizer of XAccessPolicy/prod/b allows it"),
    )
    assert granted.rows[0].initialize.verdict is Verdict.CONDITIONAL


def test_without_policies_every_tool_passes() -> None:
    assert words(listed()) == {"*": ("Allow", ())}


def test_a_scoped_name_is_known_at_its_backend_only() -> None:
    policy = v1("p", on_gateway(), {"authorization": mcp(calls("bank/pay"))})
    objects = [gateway(), backend("bank"), backend("shop"), route("r", "prod-gateway", "bank", "shop"), policy]
    loaded = snapshot(objects)
    bank, shop = (grants(loaded, AGENT, backend=name) for name in ("prod/bank", "prod/shop"))
    assert words(bank) == {"pay": ("Allow", ()), "*": ("Deny", ())}
    assert words(shop) == {"*": ("Deny", ())}
