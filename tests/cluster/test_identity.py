"""The asking user is the same as with kubectl, however a kubeconfig names it (docs/clusters.md#kubeconfig)."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.labs.control_plane import tool
from tests.labs.recording_server import Authority, RecordingServer
from tierwall.cluster.access import ClusterAccess, find_access, impersonating
from tierwall.cluster.connection import Connection
from tierwall.core.diagnostics import InputError

AUTHORITY = Authority()
CERTIFICATE, KEY = AUTHORITY.issue("carol")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _plugin(folder: Path, status: dict[str, Any], version: str = "v1") -> dict[str, Any]:
    """Write a plugin, and return the `exec` that runs it."""
    answer = {"kind": "ExecCredential", "apiVersion": f"client.authentication.k8s.io/{version}", "status": status}
    program = folder / "plugin"
    program.write_text(f"#!{sys.executable}\nprint({json.dumps(answer)!r})\n")
    program.chmod(0o755)
    return {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "command": "./plugin",
        "interactiveMode": "Never",
    }


USERS: dict[str, Any] = {
    "nothing": lambda folder: (
        {"token": ""} | {"client-certificate-data": _base64(CERTIFICATE), "client-key-data": _base64(KEY)}
    ),
    "token": lambda folder: {"token": "secret"},
    "token file": lambda folder: {"tokenFile": "token"},
    "token and its file": lambda folder: {"tokenFile": "token", "token": "old"},
    "certificate files": lambda folder: {"client-certificate": "client.crt", "client-key": "client.key"},
    "token and certificate": lambda folder: {
        "client-certificate-data": _base64(CERTIFICATE),
        "client-key-data": _base64(KEY),
        "token": "both",
    },
    "impersonation": lambda folder: {
        "token": "secret",
        "as": "jane",
        "as-groups": ["dev", "ops"],
        "as-uid": "7",
        "as-user-extra": {"example.com/Scope": ["a", "b"], "reason": ["näh"]},
    },
    "basic": lambda folder: {"username": "u", "password": "p:w"},
    "plugin token": lambda folder: {"exec": _plugin(folder, {"token": "from-plugin"})},
    "plugin certificate": lambda folder: {
        "exec": _plugin(
            folder, {"clientCertificateData": CERTIFICATE.decode(), "clientKeyData": KEY.decode()}, "v1beta1"
        )
    },
    "plugin and token": lambda folder: {"token": "mine", "exec": _plugin(folder, {"token": "from-plugin"})},
}
CLUSTERS: dict[str, Any] = {
    "authority file": {"certificate-authority": "authority.pem"},
    "authority data": {"certificate-authority-data": _base64(AUTHORITY.pem)},
    "insecure": {"insecure-skip-tls-verify": True},
    "other name": {"certificate-authority": "authority.pem", "tls-server-name": "kubernetes.internal"},
}


def _write(folder: Path, url: str, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    (folder / "token").write_text("from-file\n")
    (folder / "client.crt").write_bytes(CERTIFICATE)
    (folder / "client.key").write_bytes(KEY)
    config = folder / "config"
    config.write_text(
        json.dumps(
            {
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return config


async def _ask(config: Path, path: str = "/version") -> None:
    await _get(find_access(None, str(config), os.environ), path)


async def _get(access: ClusterAccess, path: str = "/version") -> None:
    connection = Connection(access, 10.0, "test")
    try:
        await connection.get(path)
    finally:
        await connection.close()


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("user", USERS)
def test_the_server_sees_what_kubectl_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, cluster: str
) -> None:
    """Kubectl is the yardstick: the same headers, the same certificate, the same server name."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with RecordingServer(tmp_path, AUTHORITY, "127.0.0.1", "kubernetes.internal") as server:
        config = _write(tmp_path, server.url, CLUSTERS[cluster], USERS[user](tmp_path))
        command = [tool("kubectl"), "--kubeconfig", str(config), "get", "--raw", "/version"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        expected = server.requests[-1].identity()
        asyncio.run(_ask(config))
        assert server.requests[-1].identity() == expected


@pytest.mark.parametrize("acting", [{}, {"as": "jane", "as-groups": ["dev"], "as-uid": "7"}])
@pytest.mark.parametrize(("user", "groups"), [("joe", ()), ("joe", ("ops", "dev")), (None, ("ops",)), (None, ())])
def test_acting_as_somebody_else_is_what_kubectl_does(
    tmp_path: Path, acting: dict[str, Any], user: str | None, groups: tuple[str, ...]
) -> None:
    """`--as` and `--as-group` replace what the kubeconfig says, each by itself; groups alone need its `as`."""
    with RecordingServer(tmp_path, AUTHORITY) as server:
        config = _write(tmp_path, server.url, CLUSTERS["authority data"], {"token": "secret", **acting})
        command = [tool("kubectl"), "--kubeconfig", str(config), "get", "--raw", "/version"]
        command += [f"--as={user}"] if user else []
        command += [f"--as-group={group}" for group in groups]
        is_taken = subprocess.run(command, capture_output=True, timeout=60).returncode == 0
        access = find_access(None, str(config), os.environ)
        if not is_taken:
            with pytest.raises(InputError, match="needs a user"):
                impersonating(access, user, groups)
            return
        asyncio.run(_get(impersonating(access, user, groups)))
        first, second = server.requests
        assert first.identity() == second.identity()


def test_another_authority_is_refused(tmp_path: Path) -> None:
    """A server with a certificate of somebody else gets no token."""
    with RecordingServer(tmp_path, AUTHORITY) as server:
        config = _write(tmp_path, server.url, {"certificate-authority-data": _base64(Authority().pem)}, {"token": "s"})
        with pytest.raises(Exception, match="unknown authority"):
            asyncio.run(_ask(config))
        assert server.requests == []


def test_an_encrypted_key_is_not_asked_about(tmp_path: Path) -> None:
    """OpenSSL would ask for a password on the terminal, and the command would hang."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(KEY, None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    with RecordingServer(tmp_path, AUTHORITY) as server:
        user = {"client-certificate-data": _base64(CERTIFICATE), "client-key-data": _base64(key)}
        config = _write(tmp_path, server.url, CLUSTERS["authority data"], user)
        with pytest.raises(InputError, match="encrypted"):
            asyncio.run(_ask(config))
