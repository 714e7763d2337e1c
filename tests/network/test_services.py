"""The pods behind a Service (docs/semantics.md#a-service-is-its-pods)."""

from __future__ import annotations

from typing import Any

from tests.worlds.network_snapshots import snapshot
from tierwall.network.model.services import ServiceTargets, service_targets

Object = dict[str, Any]


def pod(name: str, port: int | None = None, protocol: str = "TCP", **labels: str) -> Object:
    ports = [] if port is None else [{"name": "web", "containerPort": port, "protocol": protocol}]
    metadata = {"name": name, "namespace": "shop", "labels": labels}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "c", "image": "i", "ports": ports}]},
    }


def targets(*pods: Object, **spec: Any) -> ServiceTargets:
    value = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": spec}
    world = snapshot([*pods, value])
    resource = world.get("", "Service", "shop", "web")
    assert resource is not None
    return service_targets(world, resource)


def led_to(service: ServiceTargets, wanted: int | str) -> dict[int, list[str]]:
    port = service.port(wanted)
    assert port is not None
    return {number: [pod.name for pod in pods] for number, pods in port.pods.items()}


def test_all_labels_of_the_selector_count_and_only_in_the_own_namespace() -> None:
    elsewhere = pod("c", app="web", tier="front")
    elsewhere["metadata"]["namespace"] = "other"
    selector = {"app": "web", "tier": "front"}
    service = targets(pod("a", app="web"), pod("b", app="web", tier="front"), elsewhere, selector=selector)
    assert [pod.name for pod in service.pods] == ["b"]


def test_a_named_target_port_is_looked_up_on_each_pod_with_its_protocol() -> None:
    ports = [{"name": "http", "port": 80, "targetPort": "web"}]
    service = targets(
        pod("a", 8080, app="web"),
        pod("b", 9090, app="web"),
        pod("c", 8080, "UDP", app="web"),
        selector={"app": "web"},
        ports=ports,
    )
    assert led_to(service, 80) == led_to(service, "http") == {8080: ["a"], 9090: ["b"]}
    assert [pod.name for pod in service.ports[0].lacking] == ["c"]
    assert [service.port(81), service.port("web"), service.port(80, "UDP")] == [None, None, None]


def test_without_a_target_port_the_number_is_the_same() -> None:
    service = targets(
        pod("a", app="web"), selector={"app": "web"}, ports=[{"port": 80}, {"port": 53, "targetPort": 5353}]
    )
    assert led_to(service, 80) == {80: ["a"]}
    assert led_to(service, 53) == {5353: ["a"]}


def test_a_service_that_leads_to_no_pod_says_why() -> None:
    ports = [{"port": 80}]
    assert "ExternalName" in targets(type="ExternalName", externalName="x.example").problem
    assert "has no selector" in targets(pod("a", app="web"), ports=ports).problem
    assert "selects no pod" in targets(pod("a", app="web"), selector={"app": "db"}, ports=ports).problem
    assert "has no port" in targets(pod("a", app="web"), selector={"app": "web"}, ports=[{"port": 0}, {}]).problem
