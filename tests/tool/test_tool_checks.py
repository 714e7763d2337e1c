"""Findings about tool policies: for each, objects that have it and objects that do not."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings

from tests.randomness import examples
from tests.worlds.tool_objects import (
    BASE,
    OTHER,
    Object,
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
    route,
    sa,
    spiffe,
    v0,
    v1,
)
from tests.worlds.tool_worlds import World, seeds, snapshot
from tierwall.analyze import tool
from tierwall.core.diagnostics import Diagnostic


def findings(objects: list[Object]) -> list[Diagnostic]:
    loaded = snapshot(objects)

    def all_of_them() -> Iterator[Diagnostic]:
        yield from tool.policy_findings(loaded)
        yield from tool.level_findings(loaded)
        yield from tool.name_findings(loaded)

    return [finding for finding in all_of_them() if finding.code != "TW412"]


def codes(objects: list[Object]) -> list[str]:
    return sorted(finding.code for finding in findings(objects))


def routed(*policies: Object, backends: tuple[str, ...] = ("payment-service",)) -> list[Object]:
    places = [gateway(protocol="HTTPS"), *map(backend, backends), route("r", "prod-gateway", *backends)]
    return [*places, *policies]


def base(*methods: Object) -> Object:
    return mcp(*methods, **BASE)


def test_an_expression_that_cannot_be_used() -> None:
    (finding,) = findings(guarded({"authorization": cel("request.mcp.tool_name + 1 == 2")}))
    assert finding.code == "TW401"
    assert finding.message.startswith("expression cannot be used: 1:")
    assert codes(guarded({"authorization": cel("request.nope == 'x'")})) == ["TW401"]


def test_an_expression_that_is_not_boolean() -> None:
    (finding,) = findings(guarded({"authorization": cel("request.path")}))
    assert (finding.code, finding.message) == ("TW401", "expected an expression of type bool, found string")


def test_a_regular_expression_that_cannot_be_used() -> None:
    matchers = {"paths": [{"type": "RegularExpression", "value": "(a"}]}
    assert codes(guarded({"authorization": {"type": "Inline", **matchers}})) == ["TW402"]


def test_a_source_that_can_never_match() -> None:
    for source in (
        {"type": "SPIFFE"},
        {"type": "SPIFFE", "serviceAccount": {"name": "x"}},
        {"type": "SPIFFE", "spiffe": OTHER, "serviceAccount": {"name": "x"}},
        sa(""),
    ):
        assert codes(guarded({"source": source})) == ["TW403"]
    assert codes(guarded({"source": sa()})) == codes(guarded({"source": {}})) == []


def test_a_missing_service_account() -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "agent", "namespace": "prod"}}
    (finding,) = findings([*guarded({"source": sa("agnet")}), account])
    assert (finding.code, finding.hint) == ("TW404", "did you mean `agent`?")
    assert codes([*guarded({"source": sa()}), account]) == []
    assert codes([*guarded({"source": sa("default")}), account]) == []
    assert codes(guarded({"source": sa("agnet")})) == []


def test_base_methods_that_are_forgotten() -> None:
    (finding,) = findings(guarded({"source": sa(), "authorization": mcp(calls("x"))}))
    assert finding.code == "TW405"
    assert "MATCH_BASE_PROTOCOL_METHODS" in finding.hint
    assert codes(guarded({"authorization": cel("true")})) == ["TW405"]
    assert codes(guarded({"authorization": mcp("tools")})) == ["TW405"]


def test_base_methods_that_are_not_forgotten() -> None:
    assert codes(guarded({"source": sa(), "authorization": base(calls("x"))})) == []
    assert codes(guarded({"authorization": cel("true")}, {"authorization": base()})) == []
    assert codes(guarded({"source": sa(), "authorization": cel("true")}, {"authorization": base()})) == []
    assert codes(guarded({"authorization": mcp("prompts/list")})) == []
    assert codes([gateway(), backend(), v0("p", on_gateway(), {"source": sa(), "authorization": inline("x")})]) == []


def test_base_methods_for_one_caller_do_not_help_another() -> None:
    rules = [{"source": sa(), "authorization": base()}, {"source": spiffe(OTHER), "authorization": mcp(calls("x"))}]
    assert codes(guarded(*rules)) == ["TW405"]


def test_a_tool_that_only_the_gateway_grants() -> None:
    above = v1("g", on_gateway(), {"source": sa(), "authorization": base(calls("pay", "look"))})
    below = v1("b", on_backend(), {"source": sa(), "authorization": base(calls("pay"))})
    (finding,) = findings(routed(above, below))
    assert finding.code == "TW406"
    assert (
        "grants `look` to spiffe://cluster.local/ns/prod/sa/agent, but no backend behind the Gateway does"
        in finding.message
    )


def test_a_tool_that_only_the_backend_grants() -> None:
    above = v1("g", on_gateway(), {"authorization": base(calls("pay"))})
    below = v1("b", on_backend(), {"source": sa(), "authorization": base(calls("pay", "look"))})
    (finding,) = findings(routed(above, below))
    assert finding.code == "TW406"
    assert "no Gateway in front of the backend does: Gateway/prod/prod-gateway" in finding.message


def test_a_tool_that_both_levels_grant_to_different_callers() -> None:
    above = v1("g", on_gateway(), {"source": sa("a"), "authorization": base(calls("pay"))})
    below = v1("b", on_backend(), {"source": sa("b"), "authorization": base(calls("pay"))})
    assert codes(routed(above, below)) == ["TW406", "TW406"]


def test_a_tool_that_both_levels_may_grant_is_not_a_finding() -> None:
    above = v1("g", on_gateway(), {"authorization": base(calls("pay"))})
    for below in (
        v1("b", on_backend(), {"source": sa(), "authorization": base(calls("pay"))}),
        v1("b", on_backend(), {"authorization": cel("request.headers['x'] == 'y'")}, {"authorization": base()}),
        v1("b", on_backend(), rules=None),
    ):
        assert codes(routed(above, below)) == []
    assert codes(routed(above)) == []


def test_one_backend_of_several_that_grants_the_tool_is_enough() -> None:
    above = v1("g", on_gateway(), {"authorization": base(calls("pay"))})
    other = v1("b", on_backend("shop"), {"authorization": base(calls("buy"))})
    assert codes(routed(above, other, backends=("bank", "shop"))) == ["TW406"]  # of `buy`, which the Gateway denies
    both = v1("g", on_gateway(), {"authorization": base(calls("pay", "buy"))})
    assert codes(routed(both, other, backends=("bank", "shop"))) == []


def test_a_bare_name_that_two_backends_offer() -> None:
    above = v1("g", on_gateway(), {"authorization": base(calls("pay"))})
    grants = [v1(name, on_backend(name), {"authorization": base(calls("pay"))}) for name in ("bank", "shop")]
    (finding,) = findings(routed(above, *grants, backends=("bank", "shop")))
    assert finding.code == "TW407"
    assert "2 backends offer: prod/bank, prod/shop" in finding.message
    assert finding.hint == "write `bank/pay` for the tool of that backend"
    scoped = v1("g", on_gateway(), {"authorization": base(calls("bank/pay", "shop/pay"))})
    assert codes(routed(scoped, *grants, backends=("bank", "shop"))) == []
    assert codes(routed(above, grants[0], backends=("bank", "shop"))) == []


def test_all_ambiguous_names_of_a_rule_are_one_finding() -> None:
    tools = [f"t{number}" for number in range(9)]
    above = v1("g", on_gateway(), {"authorization": base(calls(*tools))})
    grants = [v1(name, on_backend(name), {"authorization": base(calls(*tools))}) for name in ("bank", "shop")]
    (finding,) = findings(routed(above, *grants, backends=("bank", "shop")))
    assert (
        "names tool `t0`, which 2 backends offer: prod/bank, prod/shop; `t1`, `t2`, `t3` and 5 more" in finding.message
    )
    assert finding.places == tuple(f"rules[0]:{tool}" for tool in tools)


def test_a_bare_name_that_two_backends_declare() -> None:
    above = v1("g", on_gateway(), {"authorization": base(calls("pay"))})
    objects = routed(above, backends=("bank", "shop"))
    for policy in objects[1:3]:
        policy["metadata"]["annotations"] = {"tierwall.io/tools": "pay"}
    assert codes(objects) == ["TW407"]


def test_a_scope_that_names_no_backend() -> None:
    (finding,) = findings(routed(v1("g", on_gateway(), {"authorization": base(calls("bnak/pay"))}), backends=("bank",)))
    assert (finding.code, finding.hint) == ("TW408", "did you mean `bank`?")


def test_a_policy_over_the_limit() -> None:
    crowd = [v1(f"p{number}", on_gateway(), {"source": sa()}) for number in range(6)]
    (finding,) = findings([gateway(), backend(), *crowd])
    assert finding.code == "TW409"
    assert "Gateway/prod/prod-gateway takes at most 5 policies" in finding.message


def test_an_expression_that_is_not_portable() -> None:
    rules = [{"authorization": cel("request.mcp.arguments.amount < 5")}, {"authorization": base()}]
    assert codes(guarded(*rules)) == ["TW410"]
    assert codes(guarded({"authorization": cel("has(request.mcp.arguments)")}, rules[1])) == ["TW410"]
    assert codes(guarded({"authorization": cel("'request.mcp.arguments' != ''")}, rules[1])) == []


def test_a_rule_that_can_never_match() -> None:
    assert codes(guarded({"authorization": cel("true", mcp={"methods": [{"name": "tools/list"}]})})) == ["TW411"]
    assert codes(guarded({"authorization": {"type": "Inline", "ports": [1]}})) == ["TW411"]
    assert codes(guarded({"authorization": {"type": "Inline", "ports": [1, 8080]}})) == []


def test_an_identity_that_a_listener_without_tls_does_not_give() -> None:
    for protocol, expected in (("HTTP", ["TW412"]), ("HTTPS", [])):
        loaded = snapshot([gateway(protocol=protocol), backend(), v1("p", on_gateway(), {"source": sa()})])
        assert [finding.code for finding in tool.policy_findings(loaded)] == expected
    both = manifest("gateway.networking.k8s.io/v1", "Gateway", "prod-gateway", {"gatewayClassName": "c"})
    both["spec"]["listeners"] = [{"name": protocol, "port": 1, "protocol": protocol} for protocol in ("HTTP", "HTTPS")]
    assert [
        finding.code for finding in tool.policy_findings(snapshot([both, v1("p", on_gateway(), {"source": sa()})]))
    ] == []


@given(seeds)
@settings(max_examples=examples(60))
def test_checks_take_every_cluster_and_do_not_depend_on_the_order_of_objects(seed: int) -> None:
    world = World(seed)
    backends = [place["metadata"]["name"] for place in world.places if place["kind"] == "XBackend"]
    objects = [*world.objects, {**route("r", "gw", *backends), "metadata": {"name": "r", "namespace": "a"}}]
    assert sorted(findings(objects), key=Diagnostic.sort_key) == sorted(
        findings(objects[::-1]), key=Diagnostic.sort_key
    )
