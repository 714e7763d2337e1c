"""Credential plugins: programs that print a token or a client certificate (docs/clusters.md#plugins).

The protocol is `client.authentication.k8s.io`, v1 and v1beta1. A plugin runs when a credential is needed for the first
time, when it has expired, and after the API server has refused it; never twice at the same time, as it may ask
questions on the terminal.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import msgspec
from msgspec import Struct

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.kubeconfig_entries import PluginEntry
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.values.time import parse_time

_MAX_ANSWER = 1 << 20


class PluginStatus(Struct, frozen=True, rename="camel"):
    """`status` of the answer."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str = ""


class PluginAnswer(Struct, frozen=True, rename="camel"):
    """The `ExecCredential` that a plugin prints."""

    kind: str = ""
    api_version: str = ""
    status: PluginStatus | None = None


class PluginCredential(Struct, frozen=True):
    """The credential that a plugin gave, and until when it is good, in seconds since 1970."""

    token: str = ""
    certificate: bytes = b""
    expires: float | None = None


async def run_plugin(access: ClusterAccess) -> PluginCredential:
    """Run the plugin of a user; InputError if it gives nothing that can be used."""
    plugin = access.plugin
    assert plugin is not None
    interactive = _is_interactive(plugin)
    environment = {
        **os.environ,
        **{variable.name: variable.value for variable in plugin.env},
        "KUBERNETES_EXEC_INFO": msgspec.json.encode(_request(access, plugin, interactive)).decode(),
    }
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            env=environment,
            stdin=None if interactive else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            limit=_MAX_ANSWER,
        )
    except OSError as error:
        hint = plugin.install_hint.strip()
        raise _plugin_error(plugin, f"cannot be run: {error.strerror}", hint) from None
    try:
        assert process.stdout is not None
        text = await process.stdout.read(_MAX_ANSWER + 1)
        status = await process.wait()
    except asyncio.CancelledError:
        process.kill()
        raise
    if status:
        raise _plugin_error(plugin, f"failed with exit code {status}")
    return _credential(plugin, text)


def _is_interactive(plugin: PluginEntry) -> bool:
    mode = plugin.interactive_mode or "IfAvailable"
    has_terminal = sys.stdin is not None and sys.stdin.isatty()
    if mode == "Always" and not has_terminal:
        raise _plugin_error(plugin, "needs a terminal, which standard input is not")
    return mode != "Never" and has_terminal


def _request(access: ClusterAccess, plugin: PluginEntry, interactive: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.provide_cluster_info:
        cluster: dict[str, Any] = {"server": access.server}
        if access.server_name:
            cluster["tls-server-name"] = access.server_name
        if access.insecure:
            cluster["insecure-skip-tls-verify"] = True
        if access.authority:
            # As bytes, which the encoder writes as base64.
            cluster["certificate-authority-data"] = access.authority.read()
        if access.proxy_url:
            cluster["proxy-url"] = access.proxy_url
        if not access.compressed:
            cluster["disable-compression"] = True
        if access.plugin_config is not None:
            cluster["config"] = access.plugin_config
        spec["cluster"] = cluster
    return {"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec}


def _credential(plugin: PluginEntry, text: bytes) -> PluginCredential:
    if len(text) > _MAX_ANSWER:
        raise _plugin_error(plugin, f"printed more than {_MAX_ANSWER >> 20} MiB")
    try:
        answer = msgspec.json.decode(text, type=PluginAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _plugin_error(plugin, "did not print an ExecCredential") from None
    if answer.kind != "ExecCredential" or answer.api_version != plugin.api_version:
        actual = f"{answer.kind} of {answer.api_version}"
        raise _plugin_error(plugin, f"printed {actual}, expected ExecCredential of {plugin.api_version}")
    status = answer.status
    if status is None or not (status.token or status.client_certificate_data):
        raise _plugin_error(plugin, "printed neither a token nor a client certificate")
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise _plugin_error(plugin, "printed a client certificate without its key, or a key without its certificate")
    certificate = ""
    if status.client_certificate_data:
        certificate = f"{status.client_certificate_data}\n{status.client_key_data}"
    expires = None
    if status.expiration_timestamp:
        moment = parse_time(status.expiration_timestamp)
        if moment is None:
            raise _plugin_error(plugin, "printed an `expirationTimestamp` that cannot be read as a time")
        expires = moment.ns / 1e9
    return PluginCredential(status.token, certificate.encode(), expires)


def _plugin_error(plugin: PluginEntry, problem: str, hint: str = "") -> InputError:
    return InputError([Diagnostic("TW041", f"credential plugin `{plugin.command}` {problem}", hint=hint)])
