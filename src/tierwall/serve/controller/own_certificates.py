"""The Secret with a controller's own certificates, and the caBundle of its webhook configurations.

Every replica renews them, whoever is first: a create that finds the Secret there, or an update of another version than
the one that was read, takes what the other replica has written. Nothing of it needs the lease of the leader.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ApiServerError, ClusterError
from tierwall.serve.controller.issued_certificates import IssuedCertificates, SecretData, issued, renewed

SECRET = "tierwall-certificates"
SERVICE = "tierwall-controller"
# How often the Secret is read again, in seconds: a certificate has weeks left when it is renewed.
INTERVAL_S = 60.0
# How many times a write that lost a race is tried again.
_ATTEMPTS = 5


def service_names(namespace: str, service: str = SERVICE) -> tuple[str, ...]:
    """Return the DNS names of a Service: the one that API servers use comes first."""
    name = f"{service}.{namespace}"
    return f"{name}.svc", f"{name}.svc.cluster.local", name, service


class OwnCertificates:
    """The certificates in the Secret of a namespace. Everything happens in the event loop of the connection."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        names: Sequence[str] | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._connection, self._clock = connection, clock
        self._names = tuple(names or service_names(namespace))
        self._path, self._namespace = f"/api/v1/namespaces/{namespace}/secrets", namespace

    async def refresh(self) -> IssuedCertificates:
        """Read the Secret, and renew what is due; ClusterError if the API server does not let us."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self._refresh()
            except ApiServerError as error:
                # Another replica was faster: its certificates are as good. 404: the Secret was deleted meanwhile.
                if error.code not in (404, 409):
                    raise
        return await self._refresh()

    async def _refresh(self) -> IssuedCertificates:
        secret = await self._read()
        data = _decoded(secret)
        wanted = renewed(data, self._names, self._clock())
        if wanted is not data:
            await self._write(secret, wanted)
        return issued(wanted)

    async def _read(self) -> dict[str, Any] | None:
        try:
            reply = await self._connection.get(f"{self._path}/{SECRET}")
        except ApiServerError as error:
            if error.code == 404:
                return None
            raise
        secret: dict[str, Any] = json.loads(reply.content)
        return secret

    async def _write(self, secret: dict[str, Any] | None, data: SecretData) -> None:
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        if secret is None:
            metadata = {"name": SECRET, "namespace": self._namespace, "labels": {"app.kubernetes.io/name": "tierwall"}}
            created = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": encoded}
            await self._connection.send("POST", self._path, json.dumps(created).encode())
        else:
            # It carries the version that was read.
            updated = {**secret, "data": encoded}
            await self._connection.send("PUT", f"{self._path}/{SECRET}", json.dumps(updated).encode())

    async def keep(
        self,
        current: IssuedCertificates,
        on_change: Callable[[IssuedCertificates], Awaitable[None]],
        on_failure: Callable[[ClusterError], None] = lambda failure: None,
        interval: float = INTERVAL_S,
    ) -> None:
        """Renew for as long as the task runs. `on_change` gets what replaces `current`; failures are tried again."""
        while True:
            await asyncio.sleep(interval)
            try:
                latest = await self.refresh()
            except ClusterError as failure:
                on_failure(failure)
                continue
            if latest != current:
                current = latest
                await on_change(latest)

    async def publish(self, name: str, bundle: bytes) -> bool:
        """Write the CAs into a ValidatingWebhookConfiguration, where it leads to our Service; False if it was right."""
        return await publish_bundle(self._connection, name, self._namespace, bundle)


async def publish_bundle(connection: Connection, name: str, namespace: str, bundle: bytes) -> bool:
    """Write CAs into the webhooks of a configuration that lead to the controller's Service in a namespace.

    False if there is nothing to write. ApiServerError 404: the configuration does not exist; 422: it changed meanwhile.
    """
    path = f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{name}"
    configuration = json.loads((await connection.get(path)).content)
    wanted = base64.b64encode(bundle).decode()
    changes: list[dict[str, Any]] = []
    for index, webhook in enumerate(configuration.get("webhooks") or ()):
        client = webhook["clientConfig"]
        service = client.get("service") or {}
        is_ours = (service.get("name"), service.get("namespace")) == (SERVICE, namespace)
        if is_ours and client.get("caBundle") != wanted:
            changes.append({"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": wanted})
    if not changes:
        return False
    # The positions are those of the version that was read.
    version = {"op": "test", "path": "/metadata/resourceVersion", "value": configuration["metadata"]["resourceVersion"]}
    content = json.dumps([version, *changes]).encode()
    await connection.send("PATCH", path, content, {"fieldManager": "tierwall"}, "application/json-patch+json")
    return True


def _decoded(secret: dict[str, Any] | None) -> SecretData:
    """Return the data of a Secret. What is not Base64 counts as absent, so that it is made anew."""
    data: dict[str, bytes] = {}
    for key, value in ((secret or {}).get("data") or {}).items():
        try:
            data[key] = base64.b64decode(value, validate=True)
        except ValueError:
            continue
    return data
