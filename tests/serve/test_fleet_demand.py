"""The policies that the Envoys of a Gateway must hold, so that they count as programmed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.serve.test_fleet_infrastructure import gateway, snapshot
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.envoy_report import Generation
from tierwall.serve.controller.fleet import FleetController
from tierwall.serve.controller.gateway_envoys import GatewayEnvoys


def access_policy(name: str, generation: int, kind: str, target: str, tool: str) -> Any:
    group = "gateway.networking.k8s.io" if kind == "Gateway" else "agentic.networking.x-k8s.io"
    calls = {"methods": [{"name": "tools/call", "params": [tool]}]}
    rule = {"name": "one", "authorization": {"type": "Inline", "mcp": calls}}
    return {
        "apiVersion": "agentic.networking.x-k8s.io/v1alpha1",
        "kind": "XAccessPolicy",
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-{name}", "generation": generation},
        "spec": {"targetRefs": [{"group": group, "kind": kind, "name": target}], "action": "Allow", "rules": [rule]},
    }


@pytest.mark.parametrize("is_unreadable", [False, True])
def test_a_gateway_that_cannot_be_compiled_lacks_the_policies_that_changed(
    is_unreadable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last good state stays in force, so none of them is programmed before its Envoys hold it."""
    backend = {"group": "agentic.networking.x-k8s.io", "kind": "XBackend", "name": "orders"}
    route = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "orders", "namespace": "shop"},
        "spec": {"parentRefs": [{"name": "agents"}, {"name": "other"}], "rules": [{"backendRefs": [backend]}]},
    }
    orders = {
        "apiVersion": "agentic.networking.x-k8s.io/v0alpha0",
        "kind": "XBackend",
        "metadata": {"name": "orders", "namespace": "shop"},
        "spec": {"mcp": {"serviceName": "orders", "port": 80}},
    }

    def state(generation: int, tool: str) -> Snapshot:
        both = access_policy("both", generation, "XBackend", "orders", tool)
        narrow = access_policy("one", generation, "Gateway", "agents", tool)
        gateways = (gateway(name, ports=(80,)) for name in ("agents", "other"))
        return snapshot(*gateways, route, orders, both, narrow)

    def demanded(fleet: FleetController) -> dict[str, set[Generation]]:
        return {
            envoys.name: {each for each in fleet.demanded(envoys) if each[0] in ("uid-both", "uid-one")}
            for envoys in fleet.gateways
        }

    compile_gateway = GatewayEnvoys.prepare

    def fail(envoys: GatewayEnvoys, objects: Snapshot) -> Any:
        if envoys.name == "shop/other":
            raise ValueError("no")
        return compile_gateway(envoys, objects)

    async def ask() -> None:
        fleet = FleetController()
        fleet.enforce(fleet.prepare(state(1, "a")))
        assert demanded(fleet) == {"shop/agents": {("uid-both", 1), ("uid-one", 1)}, "shop/other": {("uid-both", 1)}}
        with monkeypatch.context() as failing:
            failing.setattr(GatewayEnvoys, "prepare", fail)
            if is_unreadable:
                failing.setattr("tierwall.serve.controller.fleet.gateway_graph", None)
            fleet.enforce(fleet.prepare(state(2, "b")))
        others = {("uid-one", 2)} if is_unreadable else set()
        assert demanded(fleet) == {
            "shop/agents": {("uid-both", 2), ("uid-one", 2)},
            "shop/other": {("uid-both", 1), ("uid-both", 2)} | others,
        }
        fleet.enforce(fleet.prepare(state(2, "b")))
        assert demanded(fleet) == {"shop/agents": {("uid-both", 2), ("uid-one", 2)}, "shop/other": {("uid-both", 2)}}

    asyncio.run(ask())
