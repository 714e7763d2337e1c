"""Credential plugins: programs that print a token or a client certificate (docs/clusters.md#plugins).

The protocol is `client.authentication.k8s.io`, v1 and v1beta1. A plugin runs when a credential is needed for the first
time, when it has expired, and after the API server has refused it; never twice at the same time, as it may ask
questions on the terminal. Its standard error is ours. What it prints is bounded, and so is its time, unless somebody
sits at the terminal.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
from contextlib import suppress
from typing import Any

import msgspec

from tierwall.cluster.access import ClusterAccess, is_header_value
from tierwall.cluster.kubeconfig_entries import ConfidentialData, PluginEntry
from tierwall.cluster.pem import certificate_with_key
from tierwall.cluster.tls import load_certificate
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.resources.read import Limits, read_text
from tierwall.values.time import parse_time

_MAX_ANSWER = 1 << 20
# Logging in may mean a browser and a second device.
_PATIENCE_S = 180.0


class PluginStatus(ConfidentialData, frozen=True, rename="camel"):
    """`status` of the answer."""

    token: str | None = ""
    client_certificate_data: str | None = ""
    client_key_data: str | None = ""
    expiration_timestamp: str | None = ""


class PluginReply(ConfidentialData, frozen=True, rename="camel"):
    """The `ExecCredential` that a plugin prints."""

    kind: str = ""
    api_version: str = ""
    status: PluginStatus | None = None


class PluginCredential(ConfidentialData, frozen=True):
    """The credential that a plugin gave, and until when it is good, in seconds since 1970."""

    token: str = ""
    certificate: bytes = b""
    expires: float | None = None


async def run_plugin(access: ClusterAccess, patience: float = _PATIENCE_S) -> PluginCredential:
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
            _program(plugin),
            *plugin.args,
            env=environment,
            stdin=None if interactive else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            # So that the programs that it starts end with it. One that may ask questions needs our terminal.
            start_new_session=not interactive,
        )
    except OSError as error:
        raise _plugin_error(plugin, f"cannot be run: {error.strerror}", plugin.install_hint.strip()) from None
    try:
        async with asyncio.timeout(None if interactive else patience):
            text = await _answer(process)
            if len(text) > _MAX_ANSWER:
                raise _plugin_error(plugin, f"printed more than {_MAX_ANSWER >> 20} MiB")
            status = await process.wait()
    except BaseException as error:
        await _end(process, whole_session=not interactive)
        if isinstance(error, TimeoutError):
            raise _plugin_error(plugin, f"did not end within {patience:g} s") from None
        raise
    if status:
        problem = f"failed with exit code {status}" if status > 0 else f"was ended by signal {-status}"
        raise _plugin_error(plugin, problem)
    return _credential(plugin, text)


async def _answer(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    parts: list[bytes] = []
    size = 0
    while size <= _MAX_ANSWER and (part := await process.stdout.read(1 << 16)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


async def _end(process: asyncio.subprocess.Process, whole_session: bool) -> None:
    """End a plugin that nobody waits for any more, with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL) if whole_session else process.kill()
    await process.wait()
    # Otherwise its output stays open as long as anything that it has started in a session of its own.
    process._transport.close()  # type: ignore[attr-defined]


def _program(plugin: PluginEntry) -> str:
    """Return the path of the program. It is never looked for in the working directory."""
    if "/" in plugin.command:
        return plugin.command
    path = shutil.which(plugin.command)
    if path is None or not os.path.isabs(path):
        raise _plugin_error(plugin, "is not in PATH", plugin.install_hint.strip())
    return path


def _is_interactive(plugin: PluginEntry) -> bool:
    mode = plugin.interactive_mode or "IfAvailable"
    has_terminal = os.isatty(0)
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
    status = _status(plugin, text)
    token, certificate, key = status.token or "", status.client_certificate_data, status.client_key_data
    if not token and not certificate and not key:
        raise _plugin_error(plugin, "printed neither a token nor a client certificate")
    if not is_header_value(token):
        raise _plugin_error(plugin, "printed a token with a line break or another control character in it")
    if bool(certificate) != bool(key):
        raise _plugin_error(plugin, "printed a client certificate without its key, or a key without its certificate")
    pair = b""
    if certificate and key:
        pair = certificate_with_key(certificate.encode(), key.encode())
        try:
            load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), pair)
        except InputError as error:
            raise _plugin_error(plugin, f"printed what is of no use: {error}") from None
    expires = None
    if status.expiration_timestamp:
        moment = parse_time(status.expiration_timestamp)
        if moment is None:
            raise _plugin_error(plugin, "printed an `expirationTimestamp` that cannot be read as a time")
        expires = moment.ns / 1e9
    return PluginCredential(token.rstrip(" \t"), pair, expires)


def _status(plugin: PluginEntry, text: bytes) -> PluginStatus:
    """Decode what a plugin has printed: JSON, or YAML, which kubectl takes as well."""
    read = read_text(text, "plugin", Limits(depth=16))
    try:
        if read.diagnostics or not read.documents:
            raise _plugin_error(plugin, "did not print an ExecCredential")
        reply = msgspec.convert(read.documents[0].value, PluginReply)
    except msgspec.ValidationError:
        raise _plugin_error(plugin, "did not print an ExecCredential") from None
    if reply.kind != "ExecCredential" or reply.api_version != plugin.api_version:
        actual = f"{reply.kind or 'no kind'} of {reply.api_version or 'no version'}"[:200]
        raise _plugin_error(plugin, f"printed {actual}, expected ExecCredential of {plugin.api_version}")
    return reply.status or PluginStatus()


def _plugin_error(plugin: PluginEntry, problem: str, hint: str = "") -> InputError:
    return InputError([Diagnostic("TW041", f"credential plugin `{plugin.command}` {problem}", hint=hint[:1000])])
