"""Envoys as a fleet, on a real API server: two controllers, real Envoys, and calls that go on all the time."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.labs.fleet import CLASS, Calls, Fleet, service_account
from tests.labs.live_client import LiveClient, path_of
from tests.labs.live_cluster import LiveCluster
from tests.labs.waiting import PATIENCE_S, eventually
from tierwall.serve.controller.envoy_report import (
    REPORT_ANNOTATION,
    EnvoyReport,
    decode_report,
    generation_digest,
    report_lease_name,
)

pytestmark = pytest.mark.engine
GATEWAY_CLASS: dict[str, Any] = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "GatewayClass",
    "metadata": {"name": CLASS},
    "spec": {"controllerName": "tierwall.io/controller"},
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveClient]:
    """A cluster of its own: controllers of other tests would write the statuses of these Gateways, too."""
    cluster = LiveCluster(tmp_path_factory.mktemp("fleet"))
    try:
        cluster.start()
        with contextlib.closing(LiveClient(cluster.folder)) as client:
            yield client
    finally:
        cluster.stop()


@pytest.fixture
def gateway_class(live: LiveClient) -> Iterator[None]:
    """The class of the Gateways of these tests."""
    live.create(GATEWAY_CLASS)
    yield
    live.delete(GATEWAY_CLASS)


def allowing(fleet: Fleet, *tools: str) -> dict[str, Any]:
    """Return a policy that lets the shopper call these tools through the Gateway."""
    return {
        "apiVersion": "agentic.networking.x-k8s.io/v1alpha1",
        "kind": "XAccessPolicy",
        "metadata": {"name": "guard", "namespace": fleet.shop},
        "spec": {
            "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "agents"}],
            "action": "Allow",
            "rules": [
                {
                    "name": "shopper",
                    "source": {"type": "ServiceAccount", "serviceAccount": {"namespace": "agents", "name": "shopper"}},
                    "authorization": {
                        "type": "Inline",
                        "mcp": {"methods": [{"name": "tools/call", "params": list(tools)}]},
                    },
                }
            ],
        },
    }


def report_of(fleet: Fleet, replica: str) -> EnvoyReport:
    """Return what a replica says about the Envoys of the Gateway."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{fleet.release}/leases/"
    status, lease = fleet.live.request("GET", path + report_lease_name(replica, f"{fleet.shop}/agents"))
    return decode_report(lease["metadata"]["annotations"][REPORT_ANNOTATION]) if status == 200 else EnvoyReport()


def digest_of(fleet: Fleet, value: dict[str, Any]) -> str:
    """Return the digest of the newest generation of an object."""
    metadata = fleet.live.request("GET", f"{path_of(value)}/{value['metadata']['name']}")[1]["metadata"]
    return generation_digest((metadata["uid"], metadata["generation"]))


def programmed(fleet: Fleet, value: dict[str, Any]) -> tuple[str, bool]:
    """Return the status of `Programmed` of a policy, and whether it is about the newest generation."""
    stored = fleet.live.request("GET", f"{path_of(value)}/{value['metadata']['name']}")[1]
    conditions = [
        condition
        for ancestor in stored.get("status", {}).get("ancestors", ())
        for condition in ancestor["conditions"]
        if condition["type"] == "Programmed"
    ]
    newest = stored["metadata"]["generation"]
    return " ".join(condition["status"] for condition in conditions), any(
        condition["observedGeneration"] == newest for condition in conditions
    )


def gateway_programmed(fleet: Fleet) -> set[str]:
    """Return the status of `Programmed` of the Gateway and of its listeners."""
    status = fleet.live.request("GET", f"{path_of(fleet.gateway)}/agents")[1].get("status", {})
    every = [status, *status.get("listeners", ())]
    conditions = [condition for part in every for condition in part.get("conditions", ())]
    return {condition["status"] for condition in conditions if condition["type"] == "Programmed"}


def tell_release(live: LiveClient, version: str) -> None:
    """Let the definition of GatewayClass be of a release of the Gateway API."""
    annotations = {"gateway.networking.k8s.io/bundle-version": version}
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gatewayclasses.gateway.networking.k8s.io"
    status, answer = live.request("PATCH", path, {"metadata": {"annotations": annotations}})
    assert status == 200, answer


def supported_version(live: LiveClient) -> str:
    """Return the message of the class if its release is supported."""
    conditions = live.request("GET", f"{path_of(GATEWAY_CLASS)}/{CLASS}")[1]["status"]["conditions"]
    return " ".join(
        condition["message"]
        for condition in conditions
        if condition["type"] == "SupportedVersion" and condition["status"] == "True"
    )


@pytest.mark.usefixtures("gateway_class")
def test_envoys_move_to_another_replica_and_no_call_is_wrong(live: LiveClient, tmp_path: Path) -> None:
    fleet = Fleet(live, tmp_path, "move")
    calls = None
    try:
        guard = allowing(fleet, "allowed")
        fleet.put(guard)
        tell_release(live, "v1.6.1")
        first, second = fleet.controller("first"), fleet.controller("second")
        # Without an Envoy, nothing is in force.
        eventually(lambda: programmed(fleet, guard) == ("False", True), lambda: (first.lines, second.lines))
        envoys = fleet.envoy("one"), fleet.envoy("two")
        caller = fleet.caller()

        def said() -> Any:
            return [process.lines for process in (first, second, *envoys)]

        eventually(lambda: caller.call("allowed") == "allowed", said)
        calls = Calls(fleet, allowed=True, forbidden=False)
        # Whoever they are connected to says that they hold the policy, because they have acknowledged it.
        digest = digest_of(fleet, guard)
        both = {"one", "two"}

        def holding(*replicas: str) -> set[str]:
            reports = [report_of(fleet, replica) for replica in replicas]
            return {envoy for report in reports for envoy, held in report.held.items() if digest in held}

        eventually(lambda: holding("first", "second") == both, said)
        first.kill()
        eventually(lambda: holding("second") == both, said)
        calls.go_on()
        # The other replica brings news, both what is allowed from now on and what is not any more.
        fleet.put(allowing(fleet, "allowed", "half"))
        eventually(lambda: caller.call("half") == "allowed", said)
        fleet.put(guard)
        digest = digest_of(fleet, guard)
        eventually(lambda: holding("second") == both, said)
        eventually(lambda: programmed(fleet, guard) == ("True", True), said)
        eventually(lambda: gateway_programmed(fleet) == {"True"}, said)
        assert (
            supported_version(live)
            == "gatewayclasses.gateway.networking.k8s.io is of v1.6.1; supported are v1.0 to v1.6"
        )
        assert {caller.call("half") for _ in range(20)} == {f"denied by XAccessPolicy/{fleet.shop}/guard"}
        # Without any controller, the last policy stays in force.
        second.kill()
        calls.go_on()
        assert calls.wrong == []
        assert fleet.refusals() == []
        assert calls.number > 200
        assert "half" in fleet.backend.calls
        assert "forbidden" not in fleet.backend.calls
    finally:
        if calls is not None:
            calls.stop()
        fleet.close()


def signed(fleet: Fleet, token: str, gateway: str, port: str) -> tuple[int, str]:
    """Ask for a certificate; return the status and what is wrong."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    wish = {"gateway": gateway, "request": request.public_bytes(serialization.Encoding.PEM).decode()}
    context = ssl.create_default_context(cafile=str(fleet.authority()))
    with httpx.Client(verify=context, timeout=PATIENCE_S, trust_env=False) as client:
        answer = client.post(
            f"https://127.0.0.1:{port}/certificate",
            json=wish,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            extensions={"sni_hostname": fleet.server_name},
        )
    document = answer.json()
    if answer.status_code == 200:
        certificate = x509.load_pem_x509_certificate(document["certificate"].encode())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return 200, " ".join(names.get_values_for_type(x509.UniformResourceIdentifier))
    return answer.status_code, document["error"]


TEMPLATE = {
    "image": "envoy:1",
    "controller": "tierwall-controller.system.svc",
    "resources": {"limits": {"cpu": "1000m"}},
}


@pytest.mark.usefixtures("gateway_class")
def test_a_gateway_gets_a_deployment_a_service_and_certificates(live: LiveClient, tmp_path: Path) -> None:
    fleet = Fleet(live, tmp_path, "made")
    elsewhere = live.namespace(f"{fleet.shop}-elsewhere")
    live.create(service_account(elsewhere))
    name = f"agents-{CLASS}"
    paths = {
        "Deployment": f"/apis/apps/v1/namespaces/{fleet.shop}/deployments/{name}",
        "Service": f"/api/v1/namespaces/{fleet.shop}/services/{name}",
    }

    def stored(kind: str) -> Any:
        return live.request("GET", paths[kind])[1]

    def exists() -> set[int]:
        return {live.request("GET", path)[0] for path in paths.values()}

    try:
        foreign = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": fleet.shop},
            "spec": {"ports": [{"port": 1}]},
        }
        live.create(foreign)
        controller = fleet.controller("first", TEMPLATE)
        # What somebody else made stays as it is.
        controller.says(f"Service {fleet.shop}/{name} cannot be written.*this controller did not make it")
        assert stored("Service")["spec"]["ports"][0]["port"] == 1
        live.delete(foreign)
        eventually(lambda: exists() == {200}, lambda: controller.lines)
        ports = [port["port"] for port in stored("Service")["spec"]["ports"]]
        assert ports == [fleet.held.number]
        version = stored("Deployment")["metadata"]["resourceVersion"]
        address = stored("Service")["spec"]["clusterIP"]

        def addresses() -> Any:
            status = live.request("GET", f"{path_of(fleet.gateway)}/agents")[1].get("status", {})
            return [entry["value"] for entry in status.get("addresses", ())]

        eventually(lambda: addresses() == [address], lambda: controller.lines)
        # Nothing is connected yet.
        assert "True" not in gateway_programmed(fleet)
        # It follows the Gateway.
        gateway = fleet.gateway
        gateway["spec"]["infrastructure"] = {"labels": {"team": "edge"}}
        gateway["spec"]["listeners"].append({"name": "plain", "port": 8080, "protocol": "HTTP"})
        fleet.put(gateway)
        eventually(lambda: len(stored("Service")["spec"]["ports"]) == 2, lambda: controller.lines)
        eventually(lambda: stored("Deployment")["metadata"]["labels"].get("team") == "edge", lambda: controller.lines)
        assert int(stored("Deployment")["metadata"]["resourceVersion"]) > int(version)
        # Once things are right nothing is written, although the API server writes some of them in its own way.
        pod, other = fleet.pod("one"), fleet.pod("two", namespace=elsewhere)
        port = controller.says(r"certificates for Envoys on https://127\.0\.0\.1:(\d+)")
        mine = f"{fleet.shop}/agents"
        eventually(lambda: signed(fleet, fleet.token(pod), mine, port)[0] == 200, lambda: controller.lines)
        writes = stored("Deployment")["metadata"]["resourceVersion"], stored("Service")["metadata"]["resourceVersion"]
        assert signed(fleet, fleet.token(pod), mine, port) == (200, f"tierwall://gateway/{mine}")
        assert signed(fleet, fleet.token(pod, "https://kubernetes.default.svc"), mine, port)[0] == 401
        assert signed(fleet, "", mine, port)[0] == 401
        assert signed(fleet, "a.b.c", mine, port)[0] == 401
        assert signed(fleet, fleet.token(pod), f"{elsewhere}/agents", port)[0] == 403
        # A pod of another namespace, although it has the label.
        assert signed(fleet, fleet.token(other), mine, port)[0] == 403
        token = fleet.token(pod)
        live.delete(pod)
        eventually(lambda: signed(fleet, token, mine, port)[0] == 403, "the end of the pod")
        assert writes == (
            stored("Deployment")["metadata"]["resourceVersion"],
            stored("Service")["metadata"]["resourceVersion"],
        )
        live.delete(gateway)
        eventually(lambda: exists() == {404}, lambda: controller.lines)
        # The rights of the chart are enough for all of it.
        assert fleet.refusals() == []
    finally:
        fleet.close()
