"""A real API server knows who asks, however the kubeconfig says it: its refusals name the user (docs/clusters.md)."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.labs.live_client import LiveClient
from tests.labs.waiting import eventually
from tierwall.cluster.access import find_access
from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ApiServerError

pytestmark = pytest.mark.engine

PLUGIN = "client.authentication.k8s.io/v1"


def _plugin(folder: Path, status: dict[str, str]) -> dict[str, Any]:
    """Write a plugin that gives this credential, and count its runs in a file."""
    answer = {"apiVersion": PLUGIN, "kind": "ExecCredential", "status": status}
    program = folder / "plugin"
    program.write_text(
        f"#!{sys.executable}\nprint(1, file=open({str(folder / 'runs')!r}, 'a'))\nprint({json.dumps(answer)!r})\n"
    )
    program.chmod(0o755)
    return {"exec": {"apiVersion": PLUGIN, "command": "./plugin", "interactiveMode": "Never"}}


def _user(how: str, folder: Path, live: LiveClient) -> dict[str, Any]:
    certificate, key = (str(live.folder / "pki" / f"dirk.{end}") for end in ("crt", "key"))
    if how == "token file":
        (folder / "token").write_text("developer-token\n")
        return {"tokenFile": "token"}
    if how == "plugin token":
        return _plugin(folder, {"token": "developer-token"})
    if how == "plugin certificate":
        pem = Path(certificate).read_text(), Path(key).read_text()
        return _plugin(folder, {"clientCertificateData": pem[0], "clientKeyData": pem[1]})
    users: dict[str, dict[str, Any]] = {
        "token": {"token": "developer-token"},
        "certificate": {"client-certificate": certificate, "client-key": key},
        "impersonation": {"token": "admin-token", "as": "jane", "as-groups": ["developers"]},
    }
    return users[how]


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("token", "dora"),
        ("token file", "dora"),
        ("plugin token", "dora"),
        ("certificate", "dirk"),
        ("plugin certificate", "dirk"),
        ("impersonation", "jane"),
    ],
)
def test_the_user_is_the_one_of_the_kubeconfig(live: LiveClient, tmp_path: Path, how: str, name: str) -> None:
    """Developers may list the pods of their namespace and no secrets; kubectl is told the same."""
    with live.lock():
        if live.request("GET", "/api/v1/namespaces/workshop")[0] == 404:
            live.grant(live.namespace("workshop"))
    config = json.loads(live.kubeconfig.read_text())
    config["users"] = [{"name": "admin", "user": _user(how, tmp_path, live)}]
    config["clusters"][0]["cluster"]["certificate-authority"] = str(live.folder / "pki" / "ca.crt")
    (tmp_path / "config").write_text(json.dumps(config))
    access = find_access("admin", str(tmp_path / "config"), {})

    async def ask() -> str:
        connection = Connection(access, 60.0, "test")
        try:
            # Side by side: a plugin runs once for all of them.
            await asyncio.gather(*(connection.get("/api/v1/namespaces/workshop/pods") for _ in range(3)))
            return await _refusal(connection)
        finally:
            await connection.close()

    refusal = asyncio.run(ask())
    assert (
        refusal
        == f'secrets is forbidden: User "{name}" cannot list resource "secrets" in API group "" at the cluster scope'
    )
    assert refusal in live.kubectl_failure("get", "secrets", "--all-namespaces", KUBECONFIG=str(tmp_path / "config"))
    if "plugin" in how:
        assert (tmp_path / "runs").read_text() == "1\n" * 2, "once for us, once for kubectl"


async def _refusal(connection: Connection) -> str:
    with pytest.raises(ApiServerError) as failed:
        await connection.get("/api/v1/secrets")
    return failed.value.message


def test_a_rotated_token_of_a_service_account_is_noticed(live: LiveClient, tmp_path: Path) -> None:
    """The token in use becomes invalid, as its ServiceAccount is gone. The file has another one by then."""
    namespace = live.namespace("rotation")
    tokens = {name: _token(live, namespace, name) for name in ("first", "second")}
    (tmp_path / "ca.crt").write_bytes((live.folder / "pki" / "ca.crt").read_bytes())
    (tmp_path / "namespace").write_text(namespace)
    (tmp_path / "token").write_text(tokens["first"])
    host, port = live.url.removeprefix("https://").split(":")
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "HOME": str(tmp_path)}
    access = find_access(None, None, environment, tmp_path)
    assert (access.context, access.namespace) == ("", namespace)

    async def ask() -> tuple[str, str]:
        connection = Connection(access, 60.0, "test")
        try:
            before = await _refusal(connection)
            account = {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "first", "namespace": namespace},
            }
            live.delete(account)
            (tmp_path / "token").write_text(tokens["second"])
            # The API server believes a token for some seconds more.
            await asyncio.to_thread(eventually, lambda: _status(live, tokens["first"]) == 401, "the end of the token")
            return before, await _refusal(connection)
        finally:
            await connection.close()

    before, after = asyncio.run(ask())
    assert f'User "system:serviceaccount:{namespace}:first"' in before
    assert f'User "system:serviceaccount:{namespace}:second"' in after


def _token(live: LiveClient, namespace: str, name: str) -> str:
    live.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    status, answer = live.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", request)
    assert status == 201, answer
    return str(answer["status"]["token"])


def _status(live: LiveClient, token: str) -> int:
    return live.request("GET", "/api/v1/secrets", token=token)[0]
