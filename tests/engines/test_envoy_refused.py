"""Objects that Envoy refuses are compiled closed, and a message can be traced to the objects that it is made of."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from envoy.config.rbac.v3 import rbac_pb2

from tests.engines.test_envoy_compile import KINDS, OPTIONS, Object, codes, contents, policies, wire
from tests.labs.envoy_attacks import NETWORKING, calls, objects, policy
from tierwall.engines.envoy.config.compile import CompileState, XdsResources, canonicalized, compile
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.probe.client import CertificateAuthority
from tierwall.resources.load import load_objects
from tierwall.resources.resource import Identity
from tierwall.resources.snapshot import Snapshot

WORDS = "it is too large"
GATEWAY_API = "gateway.networking.k8s.io"
LISTS: Identity = (NETWORKING, "XAccessPolicy", "prod", "lists")
ROUTE: Identity = (GATEWAY_API, "HTTPRoute", "prod", "mcp")
GATE: Identity = (GATEWAY_API, "Gateway", "prod", "gate")
BACKEND: Identity = (NETWORKING, "XBackend", "prod", "mcp")
AUTHORIZER: Identity = ("", "Service", "prod", "authorizer")


def compiled(
    refused: Mapping[Identity, str],
    state: CompileState | None = None,
    more: list[Object] | None = None,
    options: EnvoyOptions = OPTIONS,
) -> tuple[XdsResources, CompileState]:
    return compile(Snapshot.of(load_objects([*objects(), *(more or [])])), options, state, refused)


def actions(resources: XdsResources, route: str) -> list[tuple[str, int]]:
    """Return the policies of a route that decide without looking at anything."""
    decisions = [policy.decision for policy in policies(resources, route)]
    actions = [rbac_pb2.Action.FromString(decision.action.typed_config.value) for decision in decisions]
    return [(action.name, action.action) for action in actions]


@pytest.mark.parametrize("first", [True, False])
def test_a_refused_policy_denies_on_its_targets_and_nowhere_else(first: bool) -> None:
    open_resources, state = compiled({})
    resources, after = compiled({LISTS: WORDS}, None if first else state)
    denial = "XAccessPolicy/prod/lists", rbac_pb2.RBAC.DENY
    assert actions(resources, "prod/mcp/0/0/mcp") == [denial]
    assert actions(resources, "prod/mcp/0/0/rpc") == [denial]
    assert actions(resources, "prod/mcp/0/0/http") == [denial]
    [problem] = resources.diagnostics
    assert (problem.code, str(problem.reference)) == ("TW636", "XAccessPolicy/prod/lists")
    assert WORDS in problem.message
    before, now = contents(open_resources), contents(resources)
    closed = {f"* prod/mcp/0/0/{kind}" for kind in ("mcp", "rpc", "http")}
    assert {name for name in now if now[name] != before[name]} == closed
    reopened, _ = compiled({}, after)
    assert contents(reopened) == before
    assert codes(reopened) == []


def test_filters_do_not_keep_earlier_forms_of_a_refused_policy() -> None:
    """Envoy would refuse the filter again, although routes no longer need that form."""
    _, state = compiled({}, more=[policy("bad", "mcp", [calls("a-very-long-name")])])
    # Two changes at once give new checkpoint names, and the old ones are kept for routes that still have them.
    both = [policy("bad", "mcp", [calls("another")]), policy("more", "open", [calls("x")])]
    kept, after = compiled({}, state, more=both)
    assert "a-very-long-name" in str(kept.extension_configs)
    closed, _ = compiled({(NETWORKING, "XAccessPolicy", "prod", "bad"): WORDS}, after, more=both)
    assert "a-very-long-name" not in str(closed.extension_configs)
    assert "another" not in str(closed.extension_configs)


def test_a_refused_route_answers_500_and_keeps_nothing_that_can_be_refused() -> None:
    rule = {
        "matches": [
            {"path": {"value": "/pattern"}, "headers": [{"name": "x", "type": "RegularExpression", "value": "y"}]}
        ],
        "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["odd"]}}],
        "backendRefs": [{"group": NETWORKING, "kind": "XBackend", "name": "mcp"}],
    }
    spec = {"parentRefs": [{"name": "gate"}], "rules": [rule, {"backendRefs": rule["backendRefs"]}]}
    route = {
        "apiVersion": f"{GATEWAY_API}/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "odd", "namespace": "prod"},
        "spec": spec,
    }
    resources, _ = compiled({(GATEWAY_API, "HTTPRoute", "prod", "odd"): WORDS}, more=[route])
    [host] = resources.routes["gateway/prod/gate/80/5x1+4s9"].virtual_hosts
    by_name = {route.name: route for route in host.routes}
    closed = [by_name["prod/odd/0/0"], by_name["prod/odd/1/0"]]
    assert [route.direct_response.status for route in closed] == [500, 500]
    assert [route.match.prefix for route in closed] == ["", "/"]
    assert "odd" not in {name for route in host.routes for name in route.request_headers_to_remove}
    assert codes(resources) == ["TW636", "TW655"]


@pytest.mark.parametrize(
    ("refused", "field", "name"),
    [
        (GATE, "listeners", "gateway/prod/gate/80"),
        (BACKEND, "clusters", f"backend/{NETWORKING}/prod/mcp"),
        (AUTHORIZER, "clusters", "authorizer/http/prod/authorizer/80"),
    ],
)
def test_other_refused_objects_are_left_out(refused: Identity, field: str, name: str) -> None:
    before, state = compiled({})
    assert any(message.startswith(name) for message in getattr(before, field))
    for resources, _ in (compiled({refused: WORDS}), compiled({refused: WORDS}, state)):
        assert not any(message.startswith(name) for message in getattr(resources, field))
        assert "TW636" in codes(resources)


def test_a_canonical_compilation_keeps_objects_closed() -> None:
    resources, state = compiled({LISTS: WORDS})
    again, after = canonicalized(state)
    assert contents(again) == contents(resources)
    assert after.refused == {LISTS: WORDS}


def secret(name: str, authority: CertificateAuthority) -> list[Object]:
    certificate = authority.server()
    data = {"tls.crt": certificate.chain.decode(), "tls.key": certificate.key.decode()}
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": "prod"},
            "stringData": data,
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "prod"},
            "data": {"ca.crt": authority.pem.decode()},
        },
    ]


def secured(name: str) -> Object:
    listener = {"name": "tls", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": name}]}}
    authorities = [{"group": "", "kind": "ConfigMap", "name": name}]
    return {
        "apiVersion": f"{GATEWAY_API}/v1",
        "kind": "Gateway",
        "metadata": {"name": name, "namespace": "prod"},
        "spec": {
            "gatewayClassName": "c",
            "listeners": [listener],
            "tls": {"frontend": {"default": {"validation": {"caCertificateRefs": authorities}}}},
        },
    }


def test_a_message_names_the_objects_that_it_is_made_of() -> None:
    resources, state = compiled({}, more=[secured("tls"), *secret("tls", CertificateAuthority())])
    assert codes(resources) == []
    names = {field: set(getattr(resources, field)) for field in KINDS}

    def of(field: str, part: str) -> set[str]:
        [name] = (name for name in names[field] if part in name)
        return {f"{kind}/{name}" for _, kind, _, name in state.contributors(field, name)}

    assert of("listeners", "gate/80") == {"Gateway/gate"}
    assert of("listeners", "tls/443") == {"Gateway/tls", "Secret/tls", "ConfigMap/tls"}
    assert of("secrets", "authority") == {"Gateway/tls", "Secret/tls", "ConfigMap/tls"}
    assert of("clusters", "prod/mcp") == {"XBackend/mcp"}
    assert of("clusters", "authorizer") == {"Service/authorizer", "XAccessPolicy/asks", "XAccessPolicy/asks-about-some"}
    routes = of("routes", "gate/80")
    assert {"Gateway/gate", "HTTPRoute/mcp", "XAccessPolicy/asks"} <= routes
    assert "XBackend/mcp" not in routes, "routes hold its name only"
    filters = {
        f"{kind}/{name}"
        for each in names["extension_configs"]
        for _, kind, _, name in state.contributors("extension_configs", each)
    }
    assert filters > {name for name in routes if name.startswith("XAccessPolicy/")}
    assert state.contributors("routes", "nobody") == frozenset()


def test_each_filter_names_its_own_policies() -> None:
    resources, state = compiled({})
    for name, message in resources.extension_configs.items():
        text = str(message)
        for key in state.contributors("extension_configs", name):
            assert f"{key[1]}/{key[2]}/{key[3]}" in text


def test_a_refused_secret_closes_only_the_listeners_that_need_it() -> None:
    authority = CertificateAuthority()
    more = [secured("tls"), *secret("tls", authority)]
    before, _ = compiled({})
    for kind in ("Secret", "ConfigMap"):
        resources, _ = compiled({("", kind, "prod", "tls"): WORDS}, more=more)
        assert wire(resources) == wire(before)
        assert codes(resources) == ["TW636", "TW653"]
