"""The compiler obeys settings of AgentgatewayPolicies or closes what they restrict (docs/gateway.md#obeyed-by-run)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.gateway_settings import PLAIN, gateway, policy, route, service, to
from tierwall.engines.envoy.config.compile import XdsResources, compile
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.settings import compiler
from tierwall.gateway.model.enforcement import ENFORCEMENT, EnforcementState
from tierwall.gateway.model.fields import FIELDS
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

GUARD = {"backendRef": {"name": "guard", "port": 80}}
EXT_PROC = {"extProc": GUARD}


def compiled(*objects: dict[str, Any], **options: Any) -> XdsResources:
    snapshot = Snapshot.of(load_objects(list(objects)))
    return compile(snapshot, EnvoyOptions(**options))[0]


def statuses(resources: XdsResources) -> dict[str, int]:
    """The status that each route answers by itself, 0 if it forwards."""
    (configuration,) = resources.routes.values()
    routes = [route for host in configuration.virtual_hosts for route in host.routes if route.name != "ambiguous"]
    return {route.name.removeprefix("shop/"): route.direct_response.status for route in routes}


def codes(resources: XdsResources) -> list[str]:
    return [diagnostic.code for diagnostic in resources.diagnostics]


def test_every_enforced_field_has_a_compiler_and_no_other() -> None:
    enforced = {path for path in FIELDS if ENFORCEMENT[path].state is not EnforcementState.NOT_ENFORCED}
    assert {*compiler.FIELDS, *compiler.BACKEND_FIELDS} == enforced


def test_a_restriction_that_envoy_cannot_enforce_closes_its_rule_alone() -> None:
    resources = compiled(*PLAIN, policy("p", "HTTPRoute/web", section="a", traffic=EXT_PROC))
    assert statuses(resources) == {"web/0/0": 500, "web/1/0": 0}
    assert codes(resources) == ["TW663"]
    assert "requests to Gateway/shop/edge#http, HTTPRoute/shop/web rule a are answered with 500" in str(
        resources.diagnostics[0].message
    )


def test_on_a_gateway_it_closes_every_rule() -> None:
    resources = compiled(*PLAIN, policy("p", "Gateway/edge", traffic=EXT_PROC))
    assert statuses(resources) == {"web/0/0": 500, "web/1/0": 500}


def test_before_routing_it_closes_as_well() -> None:
    resources = compiled(*PLAIN, policy("p", "Gateway/edge", traffic={**EXT_PROC, "phase": "PreRouting"}))
    assert statuses(resources) == {"web/0/0": 500, "web/1/0": 500}


def test_a_setting_that_restricts_nothing_is_said_and_left_out() -> None:
    resources = compiled(*PLAIN, policy("p", "HTTPRoute/web", backend={"health": {"unhealthyCondition": "true"}}))
    assert statuses(resources) == {"web/0/0": 0, "web/1/0": 0}
    assert set(codes(resources)) == {"TW662"}


@pytest.mark.parametrize(
    ("header", "value", "is_set"),
    [
        ("Content-Encoding", "'gzip'", False),
        ("Content-Encoding", "'identity'", True),
        ("Content-Type", "'application/json; charset=utf-7'", False),
        ("content-type", "request.headers['x']", False),
        ("Content-Type", "'application/json'", True),
        ("X-Kind", "request.headers['x']", True),
    ],
)
def test_no_setting_of_a_backend_says_that_a_judged_body_is_another_one(header: str, value: str, is_set: bool) -> None:
    for field in ("set", "add"):
        change = {"request": {field: [{"name": header, "value": value}]}}
        resources = compiled(*PLAIN, policy("p", "Service/one", backend={"transformation": change}))
        texts = [str(cluster).casefold() for cluster in resources.clusters.values()]
        assert any(header.casefold() in text for text in texts) is is_set
        assert codes(resources) == ([] if is_set else ["TW662"])


def test_no_credential_is_put_where_a_server_reads_how_a_body_is_encoded() -> None:
    auth = {"key": "gzip", "location": {"header": {"name": "Content-Encoding"}}}
    resources = compiled(*PLAIN, policy("p", "Service/one", backend={"auth": auth}))
    assert not any("content-encoding" in str(cluster).casefold() for cluster in resources.clusters.values())
    assert codes(resources) == ["TW662"]


def test_settings_of_a_backend_close_only_that_backend() -> None:
    both = route("web", [{"backendRefs": [{"name": "one", "port": 80}, {"name": "two", "port": 80}]}])
    tunnel = policy("p", "Service/two", backend={"tunnel": GUARD})
    resources = compiled(gateway(), service("one"), service("two"), both, tunnel)
    (configuration,) = resources.routes.values()
    (split,) = [route for host in configuration.virtual_hosts for route in host.routes if route.name != "ambiguous"]
    clusters = [cluster.name for cluster in split.route.weighted_clusters.clusters]
    assert clusters == ["service/shop/one/80", "nowhere"]


def test_settings_for_language_models_do_not_close_other_backends() -> None:
    guard = {"ai": {"promptGuard": {"request": [{"regex": {"matches": ["x"]}}]}}}
    resources = compiled(*PLAIN, policy("p", "Gateway/edge", backend=guard))
    assert statuses(resources) == {"web/0/0": 0, "web/1/0": 0}


@pytest.mark.parametrize("target", ["HTTPRoute/web", "Gateway/edge"])
def test_settings_for_mcp_servers_concern_xbackends(target: str) -> None:
    group = "agentic.prototype.x-k8s.io"
    server = {
        "apiVersion": f"{group}/v0alpha0",
        "kind": "XBackend",
        "metadata": {"name": "tools", "namespace": "shop"},
        "spec": {"mcp": {"serviceName": "one", "port": 80}},
    }
    ways = [{"backendRefs": [{"group": group, "kind": "XBackend", "name": "tools"}]}, {"backendRefs": to("one")}]
    guardrails = {"mcp": {"guardrails": {"processors": [{"remote": GUARD, "methods": {"*": "Full"}}]}}}
    resources = compiled(gateway(), service("one"), server, route("web", ways), policy("p", target, backend=guardrails))
    assert statuses(resources) == {"web/0/0": 500, "web/1/0": 0}
    assert "TW663" in codes(resources)


def test_settings_of_a_service_hold_when_a_policy_asks_it() -> None:
    asks = policy("asks", "HTTPRoute/web", traffic={"extAuth": {**GUARD, "http": {}}})
    secured = policy("secured", "Service/guard", backend={"tls": {"sni": "guard.example"}})
    resources = compiled(*PLAIN, service("guard"), asks, secured)
    assert resources.clusters["ask/http/service/shop/guard/80"].transport_socket.name == "envoy.transport_sockets.tls"
    assert statuses(resources) == {"web/0/0": 0, "web/1/0": 0}
    tunnelled = policy("tunnelled", "Service/guard", section="80", backend={"tunnel": GUARD})
    resources = compiled(*PLAIN, service("guard"), asks, tunnelled)
    assert statuses(resources) == {"web/0/0": 500, "web/1/0": 500}


def test_a_limit_of_requests_that_go_nowhere_is_said() -> None:
    away = route("web", [{"filters": [{"type": "RequestRedirect", "requestRedirect": {"hostname": "x.example"}}]}])
    limit = policy("p", "HTTPRoute/web", traffic={"rateLimit": {"local": [{"requests": 1, "unit": "Hours"}]}})
    resources = compiled(gateway(), away, limit)
    assert (statuses(resources), resources.diagnostics) == ({"web/0/0": 0}, ())
    resources = compiled(gateway(), route("web", [{}]), limit)
    assert statuses(resources) == {"web/0/0": 500}
    assert [str(problem.message) for problem in resources.diagnostics] == [
        "Envoy limits only requests that it forwards: the rule answers 500"
    ]


def test_a_policy_that_admission_refuses_closes_its_target() -> None:
    resources = compiled(*PLAIN, policy("p", "HTTPRoute/web", section="a", traffic={"timeouts": {"request": "soon"}}))
    assert statuses(resources) == {"web/0/0": 500, "web/1/0": 0}
    assert "TW663" in codes(resources)


_API = "gateway.networking.k8s.io"
_RULE_A = {"group": _API, "kind": "HTTPRoute", "name": "web", "sectionName": "a"}
CLOSES_A, CLOSES_ALL, CLOSES_NOTHING = (500, 0), (500, 500), (0, 0)


@pytest.mark.parametrize(
    ("targets", "closed"),
    [
        ({"targetRefs": [{"kind": "HTTPRoute", "name": "web"}]}, CLOSES_ALL),
        ({"targetRefs": [{**_RULE_A, "group": "wrong"}]}, CLOSES_A),
        ({"targetRefs": [{**_RULE_A, "kind": "httproute"}]}, CLOSES_A),
        ({"targetRefs": [{**_RULE_A, "kind": "httproute", "name": "other"}]}, CLOSES_NOTHING),
        ({"targetRefs": [{**_RULE_A, "group": None, "name": "other"}]}, CLOSES_NOTHING),
        ({"targetRefs": [{**_RULE_A, "port": 80}]}, CLOSES_ALL),
        ({"targetRefs": [{"group": "", "kind": "Service", "name": "one", "sectionName": "http"}]}, CLOSES_ALL),
        ({"targetRefs": [{"group": "", "kind": "Service", "name": "one", "sectionName": 80}]}, CLOSES_ALL),
        ({"targetRefs": [{"group": "", "kind": "Service", "name": "one", "sectionName": 81}]}, CLOSES_NOTHING),
        ({"targetRefs": [{"group": "", "kind": "Service", "name": "one", "sectionName": "\u0668\u0660"}]}, CLOSES_ALL),
        ({"targetRefs": [{"group": "", "kind": "service", "name": "one", "sectionName": "http"}]}, CLOSES_ALL),
        ({"targetRefs": [{"name": "one", "sectionName": "080"}]}, CLOSES_ALL),
        ({"targetRefs": [{"name": "one", "sectionName": "81"}]}, CLOSES_NOTHING),
        ({"targetRefs": [{"name": "other", "sectionName": "http"}]}, CLOSES_NOTHING),
        ({"targetRefs": _RULE_A}, CLOSES_A),
        ({"targetRef": [_RULE_A]}, CLOSES_ALL),
        ({"targetRefs": []}, CLOSES_ALL),
        ({"targetRefs": [5]}, CLOSES_ALL),
        ({"targetRefs": [{"group": _API, "kind": ["HTTPRoute"], "name": ["web"]}]}, CLOSES_ALL),
        ({"targetSelectors": [{"kind": "HTTPRoute", "matchLabels": {}}]}, CLOSES_ALL),
        ({"targetSelectors": [{"kind": "HTTPRoute", "matchLabels": {"team": "other"}}]}, CLOSES_NOTHING),
        ({"targetSelectors": [{"group": _API, "kind": "HTTPRoute", "matchLabels": "web"}]}, CLOSES_ALL),
    ],
)
def test_a_refused_policy_closes_what_it_may_have_been_about(targets: dict[str, Any], closed: tuple[int, int]) -> None:
    limit = {"rateLimit": {"local": [{"requests": 1, "unit": "Hours"}]}}
    refused = policy("p", "HTTPRoute/web", traffic=limit)
    refused["spec"] = {"traffic": limit, **targets}
    resources = compiled(*PLAIN, refused)
    assert statuses(resources) == {"web/0/0": closed[0], "web/1/0": closed[1]}
    assert ("TW663" in codes(resources)) is any(closed)
    elsewhere = {**refused, "metadata": {"name": "p", "namespace": "away"}}
    assert statuses(compiled(*PLAIN, elsewhere)) == {"web/0/0": 0, "web/1/0": 0}


def test_a_policy_that_envoy_refuses_closes_its_target() -> None:
    timeout = policy("p", "HTTPRoute/web", section="a", traffic={"timeouts": {"request": "1s"}})
    snapshot = Snapshot.of(load_objects([*PLAIN, timeout]))
    (identity,) = (resource.identity for resource in snapshot.of_kind("agentgateway.dev", "AgentgatewayPolicy"))
    resources, state = compile(snapshot, EnvoyOptions(), refused={identity: "no"})
    assert statuses(resources) == {"web/0/0": 500, "web/1/0": 0}
    assert "TW636" in codes(resources)
    (name,) = resources.routes
    assert identity in state.contributors("routes", name)


@pytest.mark.parametrize(
    ("condition", "limit", "status"),
    [
        ("request.path == '/a'", {"requests": 9, "unit": "Hours"}, 0),
        ("request.path == '/a'", {"tokens": 9, "unit": "Hours"}, 500),
        ("source.port == 1", {"requests": 9, "unit": "Hours"}, 500),
    ],
)
def test_a_conditional_list_that_restricts_closes_for_what_envoy_lacks(
    condition: str, limit: dict[str, Any], status: int
) -> None:
    entries = [{"condition": condition, "policy": {"local": [limit]}}]
    limited = policy("p", "HTTPRoute/web", section="a", traffic={"rateLimit": {"conditional": entries}})
    assert statuses(compiled(*PLAIN, limited)) == {"web/0/0": status, "web/1/0": 0}


@pytest.mark.parametrize(("profile", "timeout"), [("docs", 1), ("agentgateway", 1)])
def test_the_winner_of_the_merge_is_compiled(profile: str, timeout: int) -> None:
    resources = compiled(
        *PLAIN,
        policy("wide", "Gateway/edge", traffic={"timeouts": {"request": "9s"}}),
        policy("narrow", "HTTPRoute/web", section="a", traffic={"timeouts": {"request": "1s"}}),
        profile=profile,
    )
    (configuration,) = resources.routes.values()
    routes = {route.name: route for host in configuration.virtual_hosts for route in host.routes}
    assert routes["shop/web/0/0"].route.timeout.seconds == timeout
    assert routes["shop/web/1/0"].route.timeout.seconds == 9


def test_what_a_rule_sets_by_itself_beats_policies_without_override() -> None:
    native = route("web", [{"timeouts": {"request": "3s"}, "backendRefs": [{"name": "one", "port": 80}]}])
    for strategy, seconds in (("Default", 3), ("Override", 1)):
        wide = policy("wide", "Gateway/edge", traffic={"timeouts": {"request": "1s"}}, inheritance=strategy)
        (configuration,) = compiled(gateway(), service("one"), native, wide).routes.values()
        routes = {route.name: route for host in configuration.virtual_hosts for route in host.routes}
        assert routes["shop/web/0/0"].route.timeout.seconds == seconds
