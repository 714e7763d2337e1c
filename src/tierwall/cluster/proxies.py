"""The proxy of the environment for a server, where the kubeconfig has none (docs/clusters.md#proxies).

`HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` mean what they mean to kubectl, which has them from Go's standard library:
loopback addresses are always reached directly; `NO_PROXY` takes names with the names below them, `.name` for those
below alone, addresses, ranges, each with a port if wanted, and `*`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

_PORTS = {"https": 443, "http": 80}


def environment_proxy(server: str, environment: Mapping[str, str]) -> str:
    """Return the proxy of the environment for a server; an empty string if it is reached directly."""
    parts = urlsplit(server)
    # A server of CGI scripts sets HTTP_PROXY from a header of the request.
    if parts.scheme == "http" and environment.get("REQUEST_METHOD"):
        return ""
    name = f"{parts.scheme.upper()}_PROXY"
    proxy = environment.get(name) or environment.get(name.lower()) or ""
    if not proxy or _is_direct(parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0), environment):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_direct(host: str, port: int, environment: Mapping[str, str]) -> bool:
    host = host.lower()
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    listed = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    return any(_matches(item.strip().lower(), host, address, port) for item in listed.split(","))


def _matches(item: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int) -> bool:
    """Whether an item of NO_PROXY is about a host."""
    if item == "*":
        return True
    if "/" in item:
        try:
            return address is not None and address in ipaddress.ip_network(item, strict=False)
        except ValueError:
            return False
    name, colon, number = item.rpartition(":")
    if not colon or _address(item) is not None:
        name, number = item, ""
    if number and number != str(port):
        return False
    name = name.removeprefix("[").removesuffix("]")
    listed = _address(name)
    if listed is not None:
        return listed == address
    name = name.removeprefix("*") if name.startswith("*.") else name
    if not name:
        return False
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
