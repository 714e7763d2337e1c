"""AgentgatewayModels on routes and listeners, and traffic settings on InferencePools."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.gateway_objects import GATEWAY_API, manifest
from tierwall.analyze.checks import check
from tierwall.attach.place import MODEL, Place
from tierwall.attach.reach import gateway_graph
from tierwall.gateway.effects import policy_status
from tierwall.gateway.model.places import reachable_places
from tierwall.gateway.question import GatewayQuestion, ask
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

AGENTGATEWAY = "agentgateway.dev/v1alpha1"
SERVING = {"group": "agentgateway.dev", "kind": "AgentgatewayModel", "name": "*"}
ROUTE = {"group": GATEWAY_API, "kind": "HTTPRoute", "name": "route"}


def gateway(*kinds: str) -> dict[str, Any]:
    allowed = {"kinds": [{"group": "agentgateway.dev", "kind": kind} for kind in kinds]} if kinds else {}
    listener = {"name": "web", "port": 80, "protocol": "HTTP", "allowedRoutes": allowed}
    return manifest(f"{GATEWAY_API}/v1", "Gateway", "gw", {"gatewayClassName": "c", "listeners": [listener]})


def route(*refs: dict[str, Any], **rule: Any) -> dict[str, Any]:
    spec = {"parentRefs": [{"name": "gw"}], "rules": [{"name": "models", "backendRefs": list(refs), **rule}]}
    return manifest(f"{GATEWAY_API}/v1", "HTTPRoute", "route", spec)


def model(*parents: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return manifest(
        AGENTGATEWAY, "AgentgatewayModel", "gpt", {"parentRefs": list(parents), "provider": "OpenAI", **spec}
    )


def places(*objects: dict[str, Any]) -> list[str]:
    snapshot = Snapshot.of(load_objects(list(objects)))
    return [str(place) for place in reachable_places(snapshot) if place.backend is not None]


def messages(code: str, snapshot: Snapshot) -> list[str]:
    return [diagnostic.message for diagnostic in check(snapshot) if diagnostic.code == code]


ON_ROUTE = "Gateway/ns/gw#web, HTTPRoute/ns/route rule models, AgentgatewayModel/ns/gpt"


@pytest.mark.parametrize(
    ("parent", "serving", "problem"),
    [
        (ROUTE, route(SERVING), ""),
        (ROUTE | {"sectionName": "models"}, route(SERVING), ""),
        (ROUTE | {"sectionName": "other"}, route(SERVING), "no rule other in HTTPRoute ns/route"),
        (ROUTE | {"namespace": "elsewhere"}, route(SERVING), "a route of another namespace does not serve it"),
        (ROUTE | {"name": "gone"}, route(SERVING), "HTTPRoute ns/gone not found"),
        (ROUTE, route(SERVING | {"name": "gpt"}), "rule models of HTTPRoute ns/route does not serve models"),
        (ROUTE, route(SERVING | {"port": 80}), "rule models of HTTPRoute ns/route does not serve models"),
        (ROUTE, route(SERVING, {"name": "svc", "port": 80}), "rule models of HTTPRoute ns/route does not serve models"),
        (
            ROUTE,
            route(SERVING, matches=[{"path": {"type": "Exact", "value": "/x"}}]),
            "rule models of HTTPRoute ns/route does not serve models",
        ),
    ],
)
def test_a_rule_serves_the_models_that_name_it(parent: dict[str, Any], serving: dict[str, Any], problem: str) -> None:
    objects = gateway(), serving, model(parent)
    assert places(*objects) == ([] if problem else [ON_ROUTE])
    reported = messages("TW308", Snapshot.of(load_objects(list(objects))))
    wanted = f"AgentgatewayModel/ns/gpt does not attach through parentRefs[0]: {problem}"
    assert reported == ([wanted] if problem else [])


@pytest.mark.parametrize(("kinds", "reached"), [(("AgentgatewayModel",), True), ((), False)])
def test_a_listener_serves_models_only_if_it_lists_the_kind(kinds: tuple[str, ...], reached: bool) -> None:
    expected = ["Gateway/ns/gw#web, AgentgatewayModel/ns/gpt"] if reached else []
    assert places(gateway(*kinds), model({"name": "gw"})) == expected


def test_a_virtual_model_and_a_custom_provider_lead_on() -> None:
    virtual = model(ROUTE)
    del virtual["spec"]["provider"]
    virtual["spec"]["virtualModel"] = {"weighted": {"targets": [{"modelRef": {"name": "own"}}]}}
    custom = {"formats": [{"type": "Completions"}], "backendRef": {"name": "svc", "port": 80}}
    target = manifest(
        AGENTGATEWAY, "AgentgatewayModel", "own", {"parentRefs": [], "provider": "Custom", "custom": custom}
    )
    service = manifest("v1", "Service", "svc", {"ports": [{"port": 80}]})
    graph = gateway_graph(Snapshot.of(load_objects([gateway(), route(SERVING), virtual, target, service])))
    assert graph.gateways(Place(*MODEL, "ns", "own"))
    assert graph.gateways(Place("", "Service", "ns", "svc", "80"))


@pytest.mark.parametrize("profile", ["docs", "agentgateway"])
def test_inline_policies_of_a_model_beat_its_route(profile: str) -> None:
    target = {"group": GATEWAY_API, "kind": "HTTPRoute", "name": "route"}
    policy = manifest(
        AGENTGATEWAY,
        "AgentgatewayPolicy",
        "p",
        {"targetRefs": [target], "backend": {"tls": {"sni": "route"}, "tcp": {"connectTimeout": "1s"}}},
    )
    inline = {"tls": {"sni": "model"}, "promptGuard": {"request": []}, "headers": {}}
    snapshot = Snapshot.of(load_objects([gateway(), route(SERVING), model(ROUTE, policies=inline), policy]))
    place = {"gateway": "ns/gw", "route": "HTTPRoute/ns/route", "rule": 0, "backend": "AgentgatewayModel/ns/gpt"}
    answer = ask(snapshot, GatewayQuestion.from_dict(place | {"profile": profile})).to_dict()
    assert answer["effective"] == {
        "backend.tcp": {"value": {"connectTimeout": "1s"}, "from": "AgentgatewayPolicy/ns/p"},
        "backend.tls": {"value": {"sni": "model"}, "from": "AgentgatewayModel/ns/gpt"},
        "backend.ai.promptGuard": {"value": {"request": []}, "from": "AgentgatewayModel/ns/gpt"},
    }
    assert "AgentgatewayModel/ns/gpt has its own headers, which no policy can set" in answer["notes"]


def test_traffic_on_a_pool_has_no_effect_and_everybody_says_so() -> None:
    ref = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "pool"}
    pool = manifest("inference.networking.k8s.io/v1", "InferencePool", "pool", {})
    spec = {
        "targetRefs": [ref],
        "traffic": {"timeouts": {"request": "1s"}},
        "backend": {"tcp": {"connectTimeout": "1s"}},
    }
    policy = manifest(AGENTGATEWAY, "AgentgatewayPolicy", "p", spec)
    snapshot = Snapshot.of(load_objects([gateway(), route(ref), pool, policy]))
    why = "no request looks for traffic settings at an InferencePool"
    assert messages("TW303", snapshot) == [f"`traffic.timeouts` of AgentgatewayPolicy/ns/p never takes effect: {why}"]
    answer = ask(snapshot, GatewayQuestion(backend="InferencePool/ns/pool")).to_dict()
    assert list(answer["effective"]) == ["backend.tcp"]
    assert f"traffic.timeouts of AgentgatewayPolicy/ns/p has no effect: {why}" in answer["notes"]
    (loaded,) = snapshot.of_kind("agentgateway.dev", "AgentgatewayPolicy")
    (ancestor,) = policy_status(snapshot, loaded, "docs").ancestors
    (overridden,) = (condition for condition in ancestor.conditions if condition.type == "Overridden")
    assert (overridden.status, overridden.reason) == (True, "PartiallyOverridden")
    assert overridden.message == f"traffic.timeouts: {why}"
