"""AgentgatewayBackends that Envoy serves: hosts, MCP servers, providers of language models (docs/gateway.md#backends).

Everything else needs what only agentgateway does: it translates between the words of providers, joins MCP servers and
finds them by labels. Requests to such a backend are answered with 500.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import NamedTuple

from tierwall.engines.envoy.config.model_backends import model_provider
from tierwall.engines.envoy.config.options import SocketAddress
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.values.addresses import read_ip

HINT = "use `static`, one provider of models, or one MCP target with a host"
_DEFAULT_PATH = "/mcp"
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
    """Return where a backend is, or the part of it that Envoy does not serve."""
    if (other := next((field for field in _OTHERS if field in backend.spec), None)) is not None:
        return f"`spec.{other}`"
    if "ai" in backend.spec:
        return _model_target(backend)
    if "mcp" in backend.spec:
        return _mcp_target(nested_map(backend.spec, "mcp"))
    static = nested_map(backend.spec, "static")
    return "`spec.static.unixPath`" if "unixPath" in static else _located(static.get("host"), static.get("port"))


def _model_target(backend: Resource) -> BackendTarget | str:
    provider = model_provider(backend)
    if isinstance(provider, str):
        return provider
    if provider.host:
        return BackendTarget(SocketAddress(provider.host, _HTTPS), provider.section, tls=True)
    target = _located(provider.value.get("host"), provider.value.get("port"))
    return target if isinstance(target, str) else target._replace(section=provider.section)


def _mcp_target(mcp: object) -> BackendTarget | str:
    targets = list_of_maps(nested_map(mcp).get("targets"))
    if len(targets) != 1:
        return f"`spec.mcp.targets` with {len(targets)} entries"
    if nested_map(mcp).get("prefixMode") == "Always":
        return "`spec.mcp.prefixMode: Always`"
    static = nested_map(targets[0], "static")
    if "host" not in static:
        return "an MCP target without a host"
    if static.get("protocol", "StreamableHTTP") != "StreamableHTTP":
        return f"an MCP target with protocol {static['protocol']}"
    target = _located(static["host"], static.get("port"))
    if isinstance(target, str):
        return target
    return target._replace(section=str(targets[0].get("name")), path=str(static.get("path") or _DEFAULT_PATH))


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
