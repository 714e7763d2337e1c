"""A kube-apiserver by itself, with an etcd: asked whether it would accept an object (dry-run create, strict fields)."""

from __future__ import annotations

import http.client
import json
from functools import partial
from typing import Any

from tests.labs.control_plane import ControlPlane, unverified
from tests.labs.kube_cluster import install
from tests.labs.waiting import PATIENCE_S, eventually

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_HEADERS = {"Authorization": "Bearer admin-token", "Content-Type": "application/json"}


class ApiServer(ControlPlane):
    """The processes, and one connection."""

    _connection: http.client.HTTPSConnection | None = None

    def start(self) -> None:
        """Start both and wait until the server answers."""
        install(self.pki, "https://127.0.0.1:1")
        self._start_etcd()
        self._start_api_server("--authorization-mode=AlwaysAllow", "--watch-cache=false")

    def stop(self) -> None:
        """Stop everything that was started here."""
        if self._connection is not None:
            self._connection.close()
        super().stop()

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return the status and the document of an answer."""
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(
                "127.0.0.1", self.api_port, timeout=PATIENCE_S, context=unverified()
            )
        try:
            self._connection.request(method, path, None if body is None else json.dumps(body), _HEADERS)
            answer = self._connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        except (OSError, http.client.HTTPException):
            self._connection.close()
            self._connection = None
            raise

    def refusal(self, path: str, value: object) -> str:
        """Return the server's reason for refusing to create an object; empty if it would create it."""
        status, answer = self.request("POST", f"{path}?dryRun=All&fieldValidation=Strict", value)
        return "" if status == 201 else str(answer["message"])

    def install(self, *definitions: dict[str, Any]) -> None:
        """Create definitions and wait until their kinds can be used."""
        for definition in definitions:
            status, answer = self.request("POST", DEFINITIONS, definition)
            assert status == 201, answer
        for definition in definitions:
            name = definition["metadata"]["name"]
            eventually(partial(self._is_established, name), name)
            for version in definition["spec"]["versions"]:
                if version["served"]:
                    group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
                    path = f"/apis/{group}/{version['name']}/{plural}"
                    eventually(partial(self._answers, path, 200), path)

    def _is_established(self, name: str) -> bool:
        conditions = self.request("GET", f"{DEFINITIONS}/{name}")[1].get("status", {}).get("conditions")
        return any(
            condition["type"] == "Established" and condition["status"] == "True" for condition in conditions or ()
        )

    def _answers(self, path: str, status: int) -> bool:
        return self.request("GET", path)[0] == status

    def remove(self, *definitions: dict[str, Any]) -> None:
        """Delete definitions and wait until they are gone."""
        paths = [f"{DEFINITIONS}/{definition['metadata']['name']}" for definition in definitions]
        for path in paths:
            self.request("DELETE", path)
        for path in paths:
            eventually(partial(self._answers, path, 404), f"the end of {path}")


def path_of(definition: dict[str, Any], api_version: str, namespace: str = "default") -> str:
    """Return the path where objects of a definition's kind are created."""
    plural = definition["spec"]["names"]["plural"]
    if definition["spec"]["scope"] == "Cluster":
        return f"/apis/{api_version}/{plural}"
    return f"/apis/{api_version}/namespaces/{namespace}/{plural}"
