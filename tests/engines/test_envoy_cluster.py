"""`tierwall run --context` as a process: Envoy obeys the cluster, and serves with the Secrets that a Gateway names."""

from __future__ import annotations

import base64
import copy
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from mcp import Client, MCPError

import tierwall
from examples.agents import certificates
from tests.labs.agents_run import Agents, agents_in
from tests.labs.fake_api_server import FakeCluster, FakeKind
from tests.labs.waiting import PATIENCE_S, eventually, unused_port
from tierwall.resources.kinds.registry import find_kind

pytestmark = pytest.mark.engine

_OLD = ("agentic.networking.x-k8s.io/v0alpha0", "XAccessPolicy")
_CLUSTER_SCOPED = ("Namespace", "GatewayClass")


def _kind(value: dict[str, Any]) -> FakeKind:
    group, _, version = value["apiVersion"].rpartition("/")
    known = find_kind(value["apiVersion"], value["kind"])
    plural = known.plural if known is not None and known.plural else f"{value['kind'].lower()}s"
    return FakeKind(group, version, value["kind"], plural, value["kind"] not in _CLUSTER_SCOPED)


class ServedAgents:
    """The agents example, in a cluster."""

    def __init__(self, agents: Agents, folder: Path) -> None:
        self.agents = agents
        values = [_stored(resource.value) for resource in tierwall.load(*agents.sources).objects()]
        # The fake serves one version of a kind and converts nothing.
        self.values = [value for value in values if (value["apiVersion"], value["kind"]) != _OLD]
        kinds = dict.fromkeys(_kind(value) for value in self.values)
        self.cluster = FakeCluster(folder, tuple(kinds))
        for value in self.values:
            self.put(value)
        agents.sources = ["--context", "fake", "--kubeconfig", str(self.cluster.kubeconfig)]

    def put(self, value: dict[str, Any]) -> None:
        self.cluster.put(_kind(value).plural, **value)

    def value(self, kind: str, name: str) -> dict[str, Any]:
        (value,) = (value for value in self.values if (value["kind"], value["metadata"]["name"]) == (kind, name))
        return value

    def places_order(self) -> bool:
        """Whether the shopper may place an order."""
        placed: list[bool] = []

        async def shopper(client: Client) -> None:
            try:
                result = await client.call_tool("place_order", {"article": "lamp"})
                placed.append(not result.is_error)
            except MCPError:
                placed.append(False)

        self.agents.as_agent("shopper", "orders", shopper)
        return placed == [True]

    def is_served(self) -> bool:
        """The same, while connections may fail."""
        try:
            return self.places_order()
        except Exception:
            return False


def _stored(value: dict[str, Any]) -> dict[str, Any]:
    """An object as an API server has it."""
    if "stringData" not in value:
        return value
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in value["stringData"].items()}
    return {key: value[key] for key in value if key != "stringData"} | {"data": encoded}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedAgents]:
    with agents_in(tmp_path / "agents") as agents:
        served = ServedAgents(agents, tmp_path)
        with served.cluster:
            yield served


def test_envoy_obeys_the_cluster_through_an_outage(served: ServedAgents) -> None:
    policy = served.value("XAccessPolicy", "orders-team")
    narrower = copy.deepcopy(policy)
    narrower["spec"]["rules"][0]["authorization"]["mcp"]["methods"][0]["params"] = ["find_order"]
    with served.agents.running() as running:
        assert served.places_order()
        served.put(narrower)
        eventually(lambda: not served.places_order(), lambda: running.said)
        # The server goes away, and the last state counts.
        served.cluster.go_away()
        served.put(policy)
        eventually(lambda: running.get("/readyz").status_code == 503, lambda: running.said)
        assert "its last state counts: the connection is refused" in running.get("/readyz").text
        assert running.get("/healthz").status_code == 200
        assert not served.places_order()
        served.cluster.come_back()
        eventually(served.places_order, lambda: running.said)
        eventually(running.is_ready, lambda: running.said)
        # Only named Secrets and ConfigMaps were asked for, and nothing shows what is in them.
        targets = [urlsplit(target) for target in served.cluster.server.requests if "secrets" in target]
        assert {parse_qs(target.query)["fieldSelector"][0] for target in targets} == {"metadata.name=agents-tls"}
        key = served.value("Secret", "agents-tls")["data"]["tls.key"]
        pages = [running.get(page).text for page in ("/status", "/metrics", "/readyz")]
        words = re.findall(r"[A-Za-z0-9+/]{30,}", base64.b64decode(key).decode())
        for text in (running.said, *pages):
            assert not any(word in text for word in (key, *words))
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE_S) == 0


def test_a_renewed_certificate_counts(served: ServedAgents) -> None:
    """And one that is gone closes the listener that needs it."""
    agents = served.agents
    with agents.running() as running:
        assert served.places_order()
        renewed = agents.folder / "renewed"
        renewed.mkdir()
        certificates.write(renewed, [("agents", "shopper")])
        for resource in tierwall.load(str(renewed / "tls.yaml")).objects():
            served.put(_stored(resource.value))
        agents.keys = renewed

        eventually(served.is_served, lambda: running.said)
        served.cluster.delete("secrets", "shop", "agents-tls")
        eventually(lambda: "Secret/shop/agents-tls does not exist" in running.said, lambda: running.said)
        eventually(lambda: not served.is_served(), lambda: running.said)


def test_a_secret_of_another_namespace_needs_a_grant(served: ServedAgents) -> None:
    """Without one it is not even asked for."""
    gateway = served.value("Gateway", "agents")
    listener = gateway["spec"]["listeners"][0]
    elsewhere = listener | {"tls": {"certificateRefs": [{"name": "agents-tls", "namespace": "keys"}]}}
    plain = {"name": "plain", "port": 8080, "protocol": "HTTP"}
    served.put(gateway | {"spec": gateway["spec"] | {"listeners": [elsewhere, plain]}})
    secret = served.value("Secret", "agents-tls")
    served.put(secret | {"metadata": {"name": "agents-tls", "namespace": "keys"}})
    served.cluster.server.kinds["referencegrants"] = FakeKind(
        "gateway.networking.k8s.io", "v1", "ReferenceGrant", "referencegrants"
    )
    free = f"--bind=shop/agents:8080=127.0.0.1:{unused_port()}"
    with served.agents.running(free) as running:
        assert "no ReferenceGrant in namespace keys permits Secret/keys/agents-tls" in running.said
        assert not any("secrets" in target for target in served.cluster.server.requests)
        served.put(
            {
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "ReferenceGrant",
                "metadata": {"name": "gateways", "namespace": "keys"},
                "spec": {
                    "from": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "shop"}],
                    "to": [{"group": "", "kind": "Secret"}],
                },
            }
        )

        eventually(served.is_served, lambda: running.said)
