"""The Deployment and the Service of a Gateway, and the pods that may have its certificate."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from tests.labs.waiting import PATIENCE_S
from tierwall.engines.envoy.control.server import ProxyNode, UnservedProxyError
from tierwall.resources.load import load_objects
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller import envoy_certificates
from tierwall.serve.controller.envoy_certificates import EnvoyCertificates, pod_problem
from tierwall.serve.controller.fleet import MAX_ENVOYS, FleetController, gateway_uri, named_objects
from tierwall.serve.controller.gateway_class import GATEWAY_LABEL, gateway_pods, short_name
from tierwall.serve.controller.infrastructure import (
    InfrastructureTemplate,
    infrastructure_name,
    read_template,
    service_addresses,
    updated,
    wanted_objects,
)
from tierwall.serve.controller.pod_tokens import PodIdentity, PodTokens

CLASS = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "GatewayClass",
    "metadata": {"name": "tierwall"},
    "spec": {"controllerName": "tierwall.io/controller"},
}
TEMPLATE = InfrastructureTemplate(
    image="envoy:1", controller="tierwall-controller.system.svc", labels={"team": "edge"}, annotations={"a": "1"}
)


def gateway(name: str = "agents", namespace: str = "shop", ports: tuple[int, ...] = (443, 80), **spec: Any) -> Any:
    listeners = [{"name": f"l{port}", "port": port, "protocol": "HTTP"} for port in ports]
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "generation": 1},
        "spec": {"gatewayClassName": "tierwall", "listeners": listeners, **spec},
    }


def pod(name: str = "agents-1", namespace: str = "shop", label: str = "agents", phase: str = "Running") -> Any:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": {GATEWAY_LABEL: label}}
    spec = {"serviceAccountName": "default", "containers": [{"name": "envoy", "image": "envoy"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}


def snapshot(*objects: Any) -> Snapshot:
    return Snapshot.of(load_objects([CLASS, *objects]))


def of(objects: Snapshot, name: str = "agents") -> Resource:
    resource = objects.get("gateway.networking.k8s.io", "Gateway", "shop", name)
    assert resource is not None
    return resource


def made(value: Any, template: InfrastructureTemplate = TEMPLATE) -> tuple[Any, Any]:
    objects = snapshot(value)
    deployment, service = wanted_objects(objects, of(objects, value["metadata"]["name"]), template, "PEM")
    return deployment, service


def as_stored(value: Any) -> Any:
    """An object as an API server gives it back: with defaults, quantities in another form, and what others added."""
    stored = copy.deepcopy(value)
    stored["metadata"] |= {"uid": "u", "resourceVersion": "7", "generation": 1}
    stored["metadata"]["annotations"] |= {"deployment.kubernetes.io/revision": "1"}
    stored["status"] = {}
    if value["kind"] == "Service":
        stored["spec"] |= {"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"], "sessionAffinity": "None"}
        for number, port in enumerate(stored["spec"]["ports"]):
            port["nodePort"] = 30000 + number
    else:
        stored["spec"] |= {"progressDeadlineSeconds": 600}
        container = stored["spec"]["template"]["spec"]["containers"][0]
        container["terminationMessagePath"] = "/dev/termination-log"
        container["resources"] = {"limits": {"cpu": "1"}}
    return stored


def test_pods_are_restricted_and_know_their_gateway() -> None:
    deployment, service = made(gateway())
    pod_spec = deployment["spec"]["template"]["spec"]
    (container,) = pod_spec["containers"]
    assert pod_spec["automountServiceAccountToken"] is False
    assert pod_spec["securityContext"]["runAsNonRoot"]
    assert pod_spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert "--gateway=shop/agents" in container["args"]
    sources = next(volume for volume in pod_spec["volumes"] if "projected" in volume)["projected"]["sources"]
    assert sources[0]["serviceAccountToken"]["audience"] == "tierwall"
    assert [port["port"] for port in service["spec"]["ports"]] == [80, 443]
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    for value in (deployment, service):
        assert value["metadata"]["name"] == "agents-tierwall"
        (owner,) = value["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Gateway", "uid-agents")


def test_the_gateway_adds_labels_and_annotations_and_cannot_change_ours() -> None:
    wishes = {
        "labels": {"team": "shop", GATEWAY_LABEL: "other"},
        "annotations": {"b": "2", "tierwall.io/authority": "x"},
    }
    deployment, service = made(gateway(infrastructure=wishes))
    for metadata in (deployment["metadata"], service["metadata"], deployment["spec"]["template"]["metadata"]):
        assert metadata["labels"]["team"] == "shop"
        assert metadata["labels"][GATEWAY_LABEL] == "agents"
        assert {"a": "1", "b": "2"}.items() <= metadata["annotations"].items()
    assert deployment["spec"]["template"]["metadata"]["annotations"]["tierwall.io/authority"] == "PEM"


def test_health_has_a_port_that_no_listener_has() -> None:
    deployment, _ = made(gateway(ports=(15020, 15021)))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "--http=0.0.0.0:15022" in container["args"]


def test_a_gateway_without_listeners_gets_nothing() -> None:
    objects = snapshot(gateway(ports=()))
    assert wanted_objects(objects, of(objects), TEMPLATE, "PEM") == ()


@pytest.mark.parametrize("index", [0, 1])
def test_what_an_api_server_and_others_add_is_no_reason_to_write(index: int) -> None:
    wanted = made(gateway())[index]
    assert updated(as_stored(wanted), wanted) is None


@pytest.mark.parametrize("index", [0, 1])
def test_a_change_of_the_gateway_is_written_and_then_rests(index: int) -> None:
    stored = as_stored(made(gateway(infrastructure={"annotations": {"old": "1"}, "labels": {"old": "1"}}))[index])
    wanted = made(gateway(ports=(8443,)))[index]
    written = updated(stored, wanted)
    assert written is not None
    assert written["metadata"]["resourceVersion"] == "7"
    # What is not wanted any more goes; what others have written stays.
    assert "old" not in written["metadata"]["annotations"] | written["metadata"]["labels"]
    assert written["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    assert updated(as_stored(written), wanted) is None
    if index:
        assert written["spec"]["clusterIP"] == "10.0.0.7"


def test_what_somebody_has_changed_is_changed_back() -> None:
    deployment, service = made(gateway())
    opened = as_stored(deployment)
    opened["spec"]["template"]["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    assert updated(opened, deployment) is not None
    moved = as_stored(service)
    moved["spec"]["selector"] = {"app": "mine"}
    assert (updated(moved, service) or {})["spec"]["selector"] == service["spec"]["selector"]


def test_a_service_keeps_its_node_ports_and_may_change_its_type() -> None:
    _, service = made(gateway())
    stored = as_stored(service)
    stored["metadata"]["annotations"]["a"] = "changed"
    written = updated(stored, service)
    assert written is not None
    assert [port["nodePort"] for port in written["spec"]["ports"]] == [30000, 30001]
    _, inner = made(gateway(), InfrastructureTemplate(image="i", controller="c", service_type="ClusterIP"))
    stored["spec"]["externalTrafficPolicy"] = "Cluster"
    changed = updated(stored, inner)
    assert changed is not None
    assert "externalTrafficPolicy" not in changed["spec"]
    assert changed["spec"]["clusterIP"] == "10.0.0.7"


def test_somebody_else_may_scale() -> None:
    deployment, _ = made(gateway(), InfrastructureTemplate(image="i", controller="c", replicas=None))
    stored = as_stored(deployment)
    stored["spec"]["replicas"] = 9
    assert updated(stored, deployment) is None
    stored["metadata"]["labels"] = {}
    assert (updated(stored, deployment) or {})["spec"]["replicas"] == 9


def test_long_names_are_cut_and_stay_different() -> None:
    first, second = "a" * 70, "a" * 69 + "b"
    names = {infrastructure_name(of(snapshot(gateway(name)), name)) for name in (first, second)}
    assert len(names) == 2
    assert all(len(name) <= 63 for name in names)


def test_a_template_with_a_word_that_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match="colour"):
        read_template(b'{"image": "i", "controller": "c", "colour": 1}')


def test_addresses_are_those_of_the_load_balancer_or_of_the_service() -> None:
    _, service = made(gateway())
    stored = as_stored(service)
    objects = snapshot(gateway(), stored)
    assert service_addresses(objects, of(objects)) == (("IPAddress", "10.0.0.7"),)
    ingress = [{"ip": "192.0.2.1"}, {"hostname": "lb.example.com"}]
    objects = snapshot(gateway(), stored | {"status": {"loadBalancer": {"ingress": ingress}}})
    assert service_addresses(objects, of(objects)) == (("IPAddress", "192.0.2.1"), ("Hostname", "lb.example.com"))
    # A Service that somebody else made has the same name.
    foreign = copy.deepcopy(stored)
    foreign["metadata"]["ownerReferences"] = []
    objects = snapshot(gateway(), foreign)
    assert service_addresses(objects, of(objects)) == ()


IDENTITY = PodIdentity("shop", "agents-1", "uid-agents-1", "default")


@pytest.mark.parametrize(
    ("identity", "objects", "wanted", "words"),
    [
        (IDENTITY, (pod(),), "shop/agents", ""),
        (IDENTITY, (), "shop/agents", "does not exist"),
        (IDENTITY._replace(uid="earlier"), (pod(),), "shop/agents", "does not exist"),
        (IDENTITY._replace(service_account="other"), (pod(),), "shop/agents", "another ServiceAccount"),
        (IDENTITY, (pod(phase="Failed"),), "shop/agents", "has ended"),
        (IDENTITY, (pod(label="other"),), "shop/agents", "has no label"),
        # A pod of another namespace may have the label, and even the name.
        (IDENTITY._replace(namespace="bank"), (pod(namespace="bank"),), "shop/agents", "there is no Gateway"),
        (IDENTITY._replace(namespace="bank"), (pod(namespace="bank"),), "bank/agents", "there is no Gateway"),
        (IDENTITY, (pod(label="other"), gateway("other")), "shop/other", ""),
        (IDENTITY, (pod(), gateway("other")), "shop/other", "has no label"),
        (IDENTITY, (pod(), gateway("foreign", gatewayClassName="envoy")), "shop/foreign", "there is no Gateway"),
        (IDENTITY, (pod(),), "shop/agents/../other", "there is no Gateway"),
    ],
)
def test_a_pod_gets_the_certificate_of_its_own_gateway_alone(
    identity: PodIdentity, objects: tuple[Any, ...], wanted: str, words: str
) -> None:
    problem = pod_problem(snapshot(gateway(), *objects), identity, wanted, None)
    assert words in problem
    assert bool(words) is bool(problem)


@pytest.mark.parametrize("ends", [True, False])
def test_a_request_without_an_end_is_not_waited_for(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is known yet: a client that sends a part of its request, or goes away, gets an error and no more."""
    monkeypatch.setattr(envoy_certificates, "SECONDS", 0.05)
    certificates = EnvoyCertificates(PodTokens(None), lambda: None, Snapshot.of, None)  # type: ignore[arg-type]
    headers = [(b"authorization", b"Bearer x"), (b"content-length", b"100")]
    scope = {"type": "http", "method": "POST", "path": envoy_certificates.PATH, "headers": headers}
    parts = [{"type": "http.request", "body": b"{", "more_body": True}]
    parts += [{"type": "http.disconnect"}] if ends else []
    sent: list[Any] = []

    async def receive() -> Any:
        return parts.pop(0) if parts else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await certificates.app({**scope, "query_string": b"", "root_path": ""}, receive, send)

    asyncio.run(main())
    assert sent[0]["status"] == (400 if ends else 408)
    assert (b"connection", b"close") in sent[0]["headers"]


def test_gateways_of_other_namespaces_are_not_served_at_all() -> None:
    objects = snapshot(gateway(), pod())
    assert "there is no Gateway" in pod_problem(objects, IDENTITY, "shop/agents", frozenset(("bank",)))
    assert FleetController(namespaces=frozenset(("bank",))).prepare(objects).gateways == frozenset()
    assert FleetController(namespaces=frozenset(("shop",))).prepare(objects).gateways == {"shop/agents"}


def test_running_pods_of_a_gateway_are_waited_for() -> None:
    long = "g" * 80
    objects = snapshot(
        gateway(), gateway(long), pod("a"), pod("b", label="other"), pod("c", phase="Pending"), pod("d", "bank"),
        pod("e", label=short_name(long)),
    )  # fmt: skip
    assert list(gateway_pods(objects, of(objects))) == ["a"]
    assert list(gateway_pods(objects, of(objects, long))) == ["e"]


def test_secrets_are_read_in_served_namespaces_alone() -> None:
    tls = {"certificateRefs": [{"name": "here"}]}
    elsewhere = {"certificateRefs": [{"name": "there", "namespace": "bank"}]}
    listeners = [
        {"name": name, "port": port, "protocol": "HTTPS", "tls": value}
        for name, port, value in (("one", 443, tls), ("two", 8443, elsewhere))
    ]
    grant = {
        "apiVersion": "gateway.networking.k8s.io/v1beta1",
        "kind": "ReferenceGrant",
        "metadata": {"name": "grant", "namespace": "bank"},
        "spec": {
            "from": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "shop"}],
            "to": [{"group": "", "kind": "Secret"}],
        },
    }
    objects = snapshot(gateway(listeners=listeners), grant)
    assert {name for *_, name in named_objects(objects, None)} == {"here", "there"}
    assert {name for *_, name in named_objects(objects, frozenset(("shop",)))} == {"here"}
    assert named_objects(objects, frozenset(("bank",))) == frozenset()


class Node:
    """The node of an Envoy, which may name a Gateway."""

    def __init__(self, named: str) -> None:
        from envoy.config.core.v3 import base_pb2

        self.node = base_pb2.Node(id="one")
        if named:
            self.node.metadata.update({"gateway": named})


@pytest.mark.parametrize(
    ("uris", "named", "served", "is_final"),
    [
        ((gateway_uri("shop/agents"),), "", "shop/agents", False),
        ((gateway_uri("shop/agents"),), "shop/agents", "shop/agents", False),
        ((gateway_uri("shop/agents"), gateway_uri("shop/other")), "shop/other", "shop/other", False),
        ((gateway_uri("shop/agents"),), "shop/other", "", True),
        ((), "shop/agents", "", True),
        (("spiffe://cluster.local/ns/shop/sa/default",), "shop/agents", "", True),
        ((gateway_uri("shop/later"),), "", "", False),
        (("tierwall://gateway/shop/agents/..",), "", "", False),
    ],
)
def test_an_envoy_gets_what_its_certificate_names(
    uris: tuple[str, ...], named: str, served: str, is_final: bool
) -> None:
    async def ask() -> None:
        fleet = FleetController()
        fleet.enforce(fleet.prepare(snapshot(gateway(), gateway("other"))))
        proxy = ProxyNode(Node(named).node, uris)
        if served:
            groups = {envoys.name: envoys.proxies for envoys in fleet.gateways}
            assert fleet.find_group(proxy) is groups[served]
            return
        with pytest.raises(UnservedProxyError) as refusal:
            fleet.find_group(proxy)
        assert refusal.value.is_final is is_final

    asyncio.run(ask())


def test_one_gateway_cannot_use_up_what_the_others_need() -> None:
    async def ask() -> None:
        fleet = FleetController()
        fleet.enforce(fleet.prepare(snapshot(gateway(), gateway("other"))))
        first, second = (ProxyNode(Node("").node, (gateway_uri(f"shop/{name}"),)) for name in ("agents", "other"))
        streams = [fleet.find_group(first).connect() for _ in range(MAX_ENVOYS)]
        with pytest.raises(UnservedProxyError) as refusal:
            fleet.find_group(first)
        assert not refusal.value.is_final, "it may try again"
        assert fleet.find_group(second) is not None
        (group,) = (envoys.proxies for envoys in fleet.gateways if envoys.name == "shop/agents")
        group.disconnect(streams[0])
        assert fleet.find_group(first) is group

    asyncio.run(ask())
