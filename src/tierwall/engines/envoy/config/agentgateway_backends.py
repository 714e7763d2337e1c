"""AgentgatewayBackends that Envoy serves: hosts, MCP servers, providers of language models (docs/gateway.md#backends).

Several MCP targets are joined (`joined_backends`). Everything else needs what only agentgateway does: it translates
between the words of providers, and finds servers by labels. Requests to such a backend are answered with 500.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import Any, NamedTuple

from tierwall.attach.place import BACKEND
from tierwall.engines.envoy.config.model_backends import PathChange, model_provider, provider_of
from tierwall.engines.envoy.config.options import SocketAddress
from tierwall.engines.envoy.config.paths import UNSENDABLE_PATH, is_sendable
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.tool.joined import target_names
from tierwall.values.addresses import read_ip

HINT = "use `static`, one provider of models, or MCP targets with a host"
_DEFAULT_PATH = "/mcp"
# A name of a target has none of the characters that end it in joined names (Gateway API, SectionName).
_TARGET = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.ASCII)
_HTTPS = 443
_OTHERS = ("a2a", "aws", "dynamicForwardProxy")


class BackendTarget(NamedTuple):
    """The host of a backend, and for an MCP server the name of its target and its path."""

    address: SocketAddress
    section: str = ""
    path: str = ""
    # Whether it is reached over TLS, with authorities of the system.
    tls: bool = False


def backend_target(backend: Resource) -> BackendTarget | str:
    """Return where a backend is, or the part of it that Envoy does not serve; of joined targets, the first."""
    if (other := next((field for field in _OTHERS if field in backend.spec), None)) is not None:
        return f"`spec.{other}`"
    if "ai" in backend.spec:
        return _model_target(backend)
    if "mcp" in backend.spec:
        targets = _mcp_targets(nested_map(backend.spec, "mcp"))
        return targets if isinstance(targets, str) else targets[0]
    static = nested_map(backend.spec, "static")
    return "`spec.static.unixPath`" if "unixPath" in static else _located(static.get("host"), static.get("port"))


def joined_targets(backend: Resource) -> tuple[BackendTarget, ...]:
    """Return the MCP servers that a backend joins behind one path; none if it is one server, or is not served."""
    if not target_names(backend) or isinstance(backend_target(backend), str):
        return ()
    targets = _mcp_targets(nested_map(backend.spec, "mcp"))
    return () if isinstance(targets, str) else targets


def backend_paths(backend: Resource, of_models: Mapping[str, Any]) -> tuple[PathChange, ...]:
    """Return what becomes of the paths of requests to a backend; `of_models` are the fields of `backend.ai` there."""
    provider = provider_of(backend)
    if provider is not None:
        return provider.path_changes(of_models.get("routes") or {})
    target = backend_target(backend) if (backend.group, backend.kind) == BACKEND else ""
    return (PathChange() if isinstance(target, str) else PathChange(path=target.path),)


def _model_target(backend: Resource) -> BackendTarget | str:
    provider = model_provider(backend)
    if isinstance(provider, str):
        return provider
    if provider.host:
        return BackendTarget(SocketAddress(provider.host, _HTTPS), provider.section, tls=True)
    target = _located(provider.value.get("host"), provider.value.get("port"))
    return target if isinstance(target, str) else target._replace(section=provider.section)


def _mcp_targets(mcp: Mapping[str, object]) -> tuple[BackendTarget, ...] | str:
    values = list_of_maps(mcp.get("targets"))
    names = [value.get("name") for value in values]
    if len(names) > 1 and mcp.get("prefixMode") == "Never":
        return "`spec.mcp.prefixMode: Never` with several targets"
    if not names or len(set(map(str, names))) < len(names):
        return f"`spec.mcp.targets` with {len(names)} entries" if not names else "two MCP targets of one name"
    out = []
    for value in values:
        target = _mcp_target(value)
        if isinstance(target, str):
            return target
        out.append(target)
    return tuple(out)


def _mcp_target(value: Mapping[str, object]) -> BackendTarget | str:
    name, static = value.get("name"), nested_map(value, "static")
    if not isinstance(name, str) or not _TARGET.fullmatch(name):
        return "an MCP target without a plain name"
    if "host" not in static:
        return "an MCP target without a host"
    if static.get("protocol", "StreamableHTTP") != "StreamableHTTP":
        return f"an MCP target with protocol {static['protocol']}"
    if not is_sendable(static.get("path") or ""):
        return f"an MCP target with {UNSENDABLE_PATH}"
    target = _located(static["host"], static.get("port"))
    if isinstance(target, str):
        return target
    return target._replace(section=name, path=str(static.get("path") or _DEFAULT_PATH))


def _located(host: object, port: object) -> BackendTarget | str:
    """Return a target at a host; not on the machine of Envoy, whose own services trust whoever reaches them."""
    if not isinstance(host, str) or type(port) is not int:
        return "a backend without a host and port"
    if _is_local(host):
        return f"host `{host}`, which is on the machine of Envoy,"
    return BackendTarget(SocketAddress(host, port))


def _is_local(host: str) -> bool:
    ip = read_ip(host)
    if ip is None:
        last = host.lower().rstrip(".").split(".")[-1]
        # Resolvers read names such as `127.1` as addresses.
        return last == "localhost" or last.isdigit() or last.startswith("0x")
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    ip = mapped or ip
    return ip.is_loopback or ip.is_link_local or ip.is_unspecified
