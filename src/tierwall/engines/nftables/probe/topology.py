"""Pods, nodes and outside addresses as network namespaces around one router, which has the table.

Every host has a veth pair to the router, its addresses as /32 and /128, and a default route with a fixed neighbour, so
nothing waits for ARP or neighbour discovery. Everything is in namespaces of this process and ends with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace
from tierwall.engines.nftables.kernel.programs import run
from tierwall.engines.nftables.table.sets import family_of
from tierwall.values.addresses import Address, format_address

_ROUTER_MAC, _HOST_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"
_GATEWAY = {4: "169.254.1.1", 6: "fe80::1"}
_EVERYWHERE = {4: "0.0.0.0/0", 6: "::/0"}
_SETTINGS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv6/conf/all/forwarding": "1",
}


class Topology:
    """A router and its hosts, with one namespace per group of addresses."""

    def __init__(self, places: Iterable[Sequence[Address]]) -> None:
        self.router = NetworkNamespace()
        self.hosts: list[NetworkNamespace] = []
        self._at: dict[Address, NetworkNamespace] = {}
        try:
            with self.router.entered():
                _settings()
            self._build([tuple(place) for place in places])
        except BaseException:
            self.close()
            raise

    def at(self, address: Address) -> NetworkNamespace:
        """Return the namespace that has an address."""
        return self._at[address]

    def close(self) -> None:
        """Release all namespaces."""
        for host in (*self.hosts, self.router):
            host.close()
        self.hosts.clear()

    def _build(self, places: list[tuple[Address, ...]]) -> None:
        commands = ["link set lo up"]
        for number, place in enumerate(places):
            host = NetworkNamespace()
            self.hosts.append(host)
            self._at.update(dict.fromkeys(place, host))
            commands += _router_side(f"v{number}", host.path, place)
        with self.router.entered():
            run("ip", "-batch", "-", stdin="\n".join(commands) + "\n")
        for host, place in zip(self.hosts, places, strict=True):
            with host.entered():
                run("ip", "-batch", "-", stdin="\n".join(_host_side(place)) + "\n")


def _router_side(device: str, path: str, place: tuple[Address, ...]) -> Iterator[str]:
    yield f"link add {device} address {_ROUTER_MAC} type veth peer name eth0 address {_HOST_MAC} netns {path}"
    yield f"link set {device} up"
    for address in place:
        yield f"route add {format_address(address)} dev {device}"
        yield f"neigh replace {format_address(address)} lladdr {_HOST_MAC} dev {device} nud permanent"


def _host_side(place: tuple[Address, ...]) -> Iterator[str]:
    yield "link set lo up"
    yield "link set eth0 up"
    for address in place:
        prefix = "/32 dev eth0" if family_of(address) == 4 else "/128 dev eth0 nodad"
        yield f"addr add {format_address(address)}{prefix}"
    for family in sorted({family_of(address) for address in place}):
        yield f"neigh replace {_GATEWAY[family]} lladdr {_ROUTER_MAC} dev eth0 nud permanent"
        yield f"route add {_EVERYWHERE[family]} via {_GATEWAY[family]} dev eth0 onlink"


def _settings() -> None:
    for name, value in _SETTINGS.items():
        try:
            with open(f"/proc/sys/{name}", "w", encoding="ascii") as file:
                file.write(value)
        except OSError:
            # A kernel without IPv6, or a read-only /proc/sys: packets that need it will show it.
            continue
