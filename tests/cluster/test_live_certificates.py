"""The controller's own certificates on a real API server: replicas agree on them, and its webhook trusts them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from tests.labs.live_client import LiveClient
from tierwall.cluster.access import find_access
from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ApiServerError
from tierwall.serve.controller.issued_certificates import IssuedCertificates
from tierwall.serve.controller.own_certificates import SECRET, OwnCertificates, publish_bundle

pytestmark = pytest.mark.engine
Result = TypeVar("Result")


def with_connection(live: LiveClient, work: Callable[[Connection], Awaitable[Result]]) -> Result:
    """Do some work with a connection to the cluster."""

    async def run() -> Result:
        connection = Connection(find_access(None, str(live.kubeconfig), os.environ), 10)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


def test_replicas_that_start_together_agree(live: LiveClient) -> None:
    namespace = live.namespace("certificates-race")

    async def race(connection: Connection) -> list[IssuedCertificates]:
        return await asyncio.gather(*(OwnCertificates(connection, namespace).refresh() for _ in range(8)))

    first, *others = with_connection(live, race)
    assert all(other == first for other in others)
    # Much later they are due; the replicas renew them at once, and agree again.
    later = datetime.now(UTC) + timedelta(days=70)

    async def renew(connection: Connection) -> list[IssuedCertificates]:
        replicas = [OwnCertificates(connection, namespace, clock=lambda: later) for _ in range(8)]
        return await asyncio.gather(*(replica.refresh() for replica in replicas))

    second, *others = with_connection(live, renew)
    assert all(other == second for other in others)
    assert second.certificate != first.certificate
    assert second.authority == first.authority


def test_a_replica_takes_what_another_has_renewed(live: LiveClient) -> None:
    namespace = live.namespace("certificates-kept")

    async def follow(connection: Connection) -> tuple[IssuedCertificates, IssuedCertificates]:
        replica = OwnCertificates(connection, namespace)
        changed: asyncio.Future[IssuedCertificates] = asyncio.get_running_loop().create_future()

        async def take(latest: IssuedCertificates) -> None:
            changed.set_result(latest)

        task = asyncio.create_task(replica.keep(await replica.refresh(), take, interval=0.05))
        # Somebody deletes the Secret: the certificates are made anew, and every replica gets them.
        await connection.send("DELETE", f"/api/v1/namespaces/{namespace}/secrets/{SECRET}")
        try:
            return await asyncio.wait_for(changed, 30), await OwnCertificates(connection, namespace).refresh()
        finally:
            task.cancel()

    taken, latest = with_connection(live, follow)
    assert taken == latest


def configuration(name: str, *services: tuple[str, str]) -> dict[str, Any]:
    """A configuration whose webhooks are never asked."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": f"w{index}.example.com",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Ignore",
                "clientConfig": {"service": {"name": service, "namespace": namespace}},
                "rules": [
                    {"apiGroups": ["none.example"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}
                ],
            }
            for index, (service, namespace) in enumerate(services)
        ],
    }


def test_the_webhook_trusts_the_authority(live: LiveClient) -> None:
    namespace = live.namespace("certificates-webhook")
    ours, others = ("tierwall-controller", namespace), ("tierwall-controller", "elsewhere")
    live.create(configuration("certificates-webhook", others, ours))

    async def publish(connection: Connection) -> tuple[IssuedCertificates, list[bool]]:
        replica = OwnCertificates(connection, namespace)
        current = await replica.refresh()
        return current, [await replica.publish("certificates-webhook", current.authority) for _ in range(2)]

    current, written = with_connection(live, publish)
    assert written == [True, False], "what is right already is not written"
    text = live.kubectl("get", "validatingwebhookconfiguration", "certificates-webhook", "-o", "json")
    other, ours_now = (webhook["clientConfig"].get("caBundle") for webhook in json.loads(text)["webhooks"])
    assert other is None
    assert base64.b64decode(ours_now) == current.authority


def test_a_configuration_that_does_not_exist_is_told(live: LiveClient) -> None:
    async def publish(connection: Connection) -> bool:
        return await publish_bundle(connection, "no-such-configuration", "x", b"")

    with pytest.raises(ApiServerError) as error:
        with_connection(live, publish)
    assert error.value.code == 404
