"""The guard of pod interfaces with real packets: forged and added addresses, and pods that nobody knows yet."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.labs.nft_kernel import need_kernel
from tests.labs.waiting import PATIENCE_S, eventually
from tests.worlds.nft_clusters import admin_policy, namespace, network_policy, pod
from tierwall.engines.nftables.kernel.apply import list_text, read_table
from tierwall.engines.nftables.kernel.audit import AuditNames, event, hits
from tierwall.engines.nftables.kernel.interfaces import InterfaceFinder
from tierwall.engines.nftables.kernel.lookups import CniLookup, CommandLookup
from tierwall.engines.nftables.kernel.nflog import LogReader
from tierwall.engines.nftables.kernel.programs import run
from tierwall.engines.nftables.probe.topology import Topology
from tierwall.engines.nftables.table.interfaces import DECIDER, FOREIGN, NOT_KNOWN
from tierwall.engines.nftables.table.options import TableOptions, UnknownPods
from tierwall.render.engines import event_line
from tierwall.resources.load import Loader
from tierwall.serve.files import FileSource
from tierwall.serve.kernel_follower import KernelFollower
from tierwall.values.addresses import Address, parse_address

pytestmark = pytest.mark.engine

# Pod `a` may send nothing; everybody else may.
A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"
A6, B6, C6 = "fd00::1", "fd00::2", "fd00::3"
PORT = 7000
DENIED = network_policy("shop/no-egress", podSelector={"matchLabels": {"app": "a"}}, policyTypes=["Egress"])


def two_family_pod(name: str, address: str, address6: str, app: str) -> Any:
    return pod(f"shop/{name}", address, app=app) | {
        "status": {"podIP": address, "podIPs": [{"ip": address}, {"ip": address6}]}
    }


OBJECTS = [namespace("shop"), two_family_pod("a", A, A6, "a"), two_family_pod("b", B, B6, "b")]
POD_C = two_family_pod("c", C, C6, "c")


def address(text: str) -> Address:
    value = parse_address(text)
    assert value is not None
    return value


@pytest.fixture
def topology() -> Iterator[Topology]:
    """Three hosts: `a` behind v0, `b` behind v1, `c` behind v2."""
    need_kernel()
    new_topology = Topology([(address(v4), address(v6)) for v4, v6 in ((A, A6), (B, B6), (C, C6))])
    yield new_topology
    new_topology.close()


class Objects:
    """A source of objects that tests change."""

    def __init__(self, path: Path, *objects: Any) -> None:
        self.path = path / "objects.json"
        self.write(*objects)
        self.files = FileSource(Loader([str(self.path)]))

    def write(self, *objects: Any) -> None:
        self.path.write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


class Kept:
    """A follower that enforces objects at the router."""

    def __init__(self, topology: Topology, objects: Objects, keeper: KernelFollower) -> None:
        self._topology, self._objects, self.keeper = topology, objects, keeper
        self.begin()

    def begin(self) -> None:
        with self._topology.router.entered():
            self.load = self.keeper.begin(self._objects.files)

    def change(self, *objects: Any) -> str:
        """Change the objects, and return the report."""
        self._objects.write(*objects)
        with self._topology.router.entered():
            load = self.keeper.next_load(self._objects.files)
            assert load is not None
            self.keeper.accept(load)
        return self.keeper.report(load).summary

    def look(self) -> None:
        """Look at the interfaces again."""
        with self._topology.router.entered():
            self.keeper._rebind()


@contextmanager
def kept(
    topology: Topology,
    path: Path,
    *objects: Any,
    options: TableOptions | None = None,
    finder: InterfaceFinder | None = None,
) -> Iterator[Kept]:
    with closing(KernelFollower(options or TableOptions(rate=0), True, finder)) as keeper:
        yield Kept(topology, Objects(path, *objects), keeper)


class Receiver:
    """A host that receives UDP packets on one port, of one family."""

    def __init__(self, topology: Topology, place: str) -> None:
        family = socket.AF_INET6 if ":" in place else socket.AF_INET
        with topology.at(address(place)).entered():
            self._socket = socket.socket(family, socket.SOCK_DGRAM)
            self._socket.bind((place, PORT))
        self._socket.settimeout(PATIENCE_S)

    def receive(self) -> bytes:
        return self._socket.recv(64)

    def is_empty(self) -> bool:
        self._socket.setblocking(False)
        try:
            self._socket.recv(64)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(PATIENCE_S)
        return False

    def close(self) -> None:
        self._socket.close()


def send(topology: Topology, host: str, destination: str, source: str = "", words: bytes = b"hello") -> None:
    """Send a UDP packet from a host, as an ordinary program does."""
    family = socket.AF_INET6 if ":" in destination else socket.AF_INET
    with topology.at(address(host)).entered(), socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.bind((source or host, 0))
        sender.sendto(words, (destination, PORT))


def forge(topology: Topology, host: str, source: str, destination: str, words: bytes = b"forged") -> None:
    """Send a UDP packet under any source address from a host, as a raw frame on its interface."""
    ethernet = bytes.fromhex("020000000001020000000002")
    udp = struct.pack("!HHHH", 5555, PORT, 8 + len(words), 0) + words
    if ":" in destination:
        addresses = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, destination)
        pseudo = addresses + struct.pack("!II", len(udp), 17)
        udp = udp[:6] + struct.pack("!H", checksum(pseudo + udp) or 0xFFFF) + udp[8:]
        frame = ethernet + b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, len(udp), 17, 64) + addresses + udp
    else:
        addresses = socket.inet_aton(source) + socket.inet_aton(destination)
        header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0) + addresses
        header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
        frame = ethernet + b"\x08\x00" + header + udp
    with topology.at(address(host)).entered(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
        raw.bind(("eth0", 0))
        raw.send(frame)


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    padded = data + b"\0" * (len(data) % 2)
    total = sum(int.from_bytes(padded[at : at + 2], "big") for at in range(0, len(padded), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def drops(topology: Topology, reason: str) -> int:
    """Return the number of packets that the guard has dropped for a reason."""
    with topology.router.entered():
        return sum(
            hit.packets
            for hit in hits()
            if (str(hit.decided_by[0].policy), hit.decided_by[0].name) == (DECIDER, reason)
        )


def passes(topology: Topology, receiver: Receiver, send_packet: Callable[[], None], reason: str = FOREIGN) -> bool:
    """Whether a packet arrives, or else is dropped by the guard for this reason."""
    before = drops(topology, reason)
    send_packet()
    received: list[bool] = []

    def seen() -> bool:
        received[:] = [not receiver.is_empty()]
        return received[0] or drops(topology, reason) > before

    eventually(seen, "the packet, or its drop")
    return received[0]


def dropped(topology: Topology, receiver: Receiver, send_packet: Callable[[], None], reason: str) -> bool:
    """Whether packets are dropped for a reason, and none arrives. An interface that was just set up loses the first."""
    before = drops(topology, reason)

    def seen() -> bool:
        send_packet()
        return drops(topology, reason) > before

    eventually(seen, "the drop of a packet")
    return receiver.is_empty()


@pytest.mark.parametrize(("mine", "others", "to"), [(A, B, C), (A6, B6, C6)])
def test_a_forged_or_added_address_passes_no_policy(
    topology: Topology, tmp_path: Path, mine: str, others: str, to: str
) -> None:
    receiver = Receiver(topology, to)
    with kept(topology, tmp_path, *OBJECTS, POD_C, DENIED):
        send(topology, others, to)
        assert receiver.receive() == b"hello", "an honest packet passes"
        for source in (others, "192.0.2.7" if to == C else "2001:db8::7"):
            assert not passes(topology, receiver, partial(forge, topology, mine, source, to))
        with topology.at(address(mine)).entered():
            run("ip", "addr", "add", f"{others}/{32 if to == C else 128}", "dev", "eth0", *(["nodad"] * (to != C)))
        assert not passes(topology, receiver, lambda: send(topology, mine, to, source=others))
    receiver.close()


def test_a_forged_packet_of_an_open_connection_is_dropped_and_named_in_the_audit(
    topology: Topology, tmp_path: Path
) -> None:
    receiver = Receiver(topology, C)
    router = topology.router
    with (
        kept(topology, tmp_path, *OBJECTS, POD_C, DENIED),
        router.entered(),
        closing(LogReader(7, at_once=True)) as log,
    ):
        # The connection that the forged packets claim to belong to.
        with topology.at(address(B)).entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as honest:
            honest.bind((B, 5555))
            honest.sendto(b"hello", (C, PORT))
        assert receiver.receive() == b"hello"
        assert not passes(topology, receiver, lambda: forge(topology, A, B, C))
        (logged,) = [packet for packet in log.read() if packet.flow.protocol == "UDP"]
        line = event_line(event(logged, AuditNames()))
    assert line.endswith(
        " Deny egress UDP shop/b (10.0.0.2:5555) -> shop/c (10.0.0.3:7000)"
        " by Interface spec (source address does not belong to this interface)"
    )
    receiver.close()


def test_a_pod_that_is_not_known_yet_is_closed_until_it_is(topology: Topology, tmp_path: Path) -> None:
    at_b, at_c = Receiver(topology, B), Receiver(topology, C)

    def from_c() -> None:
        send(topology, C, B)

    def to_c() -> None:
        send(topology, B, C)

    with kept(topology, tmp_path, *OBJECTS, DENIED) as follower:
        assert [
            diagnostic.code
            for diagnostic in follower.keeper.report(follower.load).diagnostics
            if diagnostic.code > "TW607"
        ] == ["TW609"]
        assert not passes(topology, at_b, from_c, NOT_KNOWN)
        assert not passes(topology, at_c, to_c, NOT_KNOWN)
        assert follower.change(*OBJECTS, DENIED, POD_C) == "1 pod followed"
        assert passes(topology, at_b, from_c)
        assert passes(topology, at_c, to_c)
        assert not passes(topology, at_b, lambda: forge(topology, C, A, B))
        assert follower.change(*OBJECTS, DENIED).startswith("1 pod followed")
        assert not passes(topology, at_b, from_c, NOT_KNOWN)
        # A pod without an address is not known either.
        follower.change(*OBJECTS, DENIED, POD_C | {"status": {}})
        assert not passes(topology, at_b, from_c, NOT_KNOWN)
    at_b.close()
    at_c.close()


def test_unknown_pods_may_be_left_open_but_not_with_the_address_of_a_known_pod(
    topology: Topology, tmp_path: Path
) -> None:
    at_b, at_c = Receiver(topology, B), Receiver(topology, C)
    options = TableOptions(unknown_pods=UnknownPods.OPEN, rate=0)
    with kept(topology, tmp_path, *OBJECTS, DENIED, options=options):
        assert passes(topology, at_b, lambda: send(topology, C, B))
        assert passes(topology, at_c, lambda: send(topology, B, C))
        assert not passes(topology, at_b, lambda: forge(topology, C, A, B))
    at_b.close()
    at_c.close()


IMPOSSIBLE = {"matchExpressions": [{"key": "app", "operator": "Exists"}, {"key": "app", "operator": "DoesNotExist"}]}


@pytest.mark.parametrize(
    ("policies", "closed"),
    [
        ([], False),
        ([network_policy("shop/nobody", podSelector=IMPOSSIBLE)], False),
        (
            [
                network_policy("shop/d", podSelector={})
                | {"metadata": {"namespace": "shop", "name": "d", "annotations": {"tierwall.io/mode": "shadow"}}}
            ],
            False,
        ),
        ([network_policy("elsewhere/somebody", podSelector={"matchLabels": {"app": "nobody-has-this"}})], True),
        ([admin_policy("x", egress=[{"action": "Deny", "to": [{"networks": ["192.0.2.0/24"]}]}])], True),
        (
            [
                admin_policy(
                    "x",
                    subject={"namespaces": {"matchLabels": {"team": "unheard-of"}}},
                    ingress=[{"action": "Deny", "from": [{"namespaces": {}}]}],
                )
            ],
            True,
        ),
        (
            [
                admin_policy(
                    "x",
                    subject={
                        "namespaces": {"matchLabels": {"kubernetes.io/metadata.name": "shop", "team": "unheard-of"}}
                    },
                    ingress=[{"action": "Deny", "from": [{"namespaces": {}}]}],
                )
            ],
            False,
        ),
    ],
)
def test_an_unknown_pod_is_closed_while_a_policy_could_be_about_it(
    topology: Topology, tmp_path: Path, policies: list[Any], closed: bool
) -> None:
    at_b = Receiver(topology, B)
    with kept(topology, tmp_path, *OBJECTS, *policies) as follower:
        assert passes(topology, at_b, lambda: send(topology, C, B), NOT_KNOWN) is not closed
        # The guard follows the policies.
        follower.change(*OBJECTS, DENIED)
        assert not passes(topology, at_b, lambda: send(topology, C, B), NOT_KNOWN)
        follower.change(*OBJECTS)
        assert passes(topology, at_b, lambda: send(topology, C, B), NOT_KNOWN)
    at_b.close()


@pytest.mark.parametrize("exempt", [False, True])
def test_an_unknown_pod_does_not_reach_its_node_either(topology: Topology, tmp_path: Path, exempt: bool) -> None:
    node = "172.18.0.9"
    with topology.router.entered():
        run("ip", "addr", "add", f"{node}/32", "dev", "lo")
        at_node = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        at_node.bind((node, PORT))
        at_node.settimeout(PATIENCE_S)
    options = TableOptions(exempt_own_node=exempt, rate=0)
    at_c = Receiver(topology, C)
    with kept(topology, tmp_path, *OBJECTS, DENIED, options=options):
        before = drops(topology, NOT_KNOWN)
        send(topology, C, node)
        if exempt:
            assert at_node.recv(64) == b"hello"
            at_node.sendto(b"hello", (C, PORT))
            assert at_c.receive() == b"hello"
        else:
            eventually(lambda: drops(topology, NOT_KNOWN) > before, "the drop")
            with pytest.raises(PermissionError):
                at_node.sendto(b"hello", (C, PORT))
        # A pod with an interface never reaches the node under an address that is not its own.
        before = drops(topology, FOREIGN)
        forge(topology, A, C, node)
        eventually(lambda: drops(topology, FOREIGN) > before, "the drop")
    at_node.close()
    at_c.close()


def test_neighbour_discovery_works_and_link_local_addresses_reach_nothing_else(
    topology: Topology, tmp_path: Path
) -> None:
    receiver = Receiver(topology, C6)
    with topology.router.entered():
        run("ip", "addr", "add", "fe80::1/64", "dev", "v1", "nodad")
        at_node = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        at_node.bind(("fe80::1", PORT, 0, socket.if_nametoindex("v1")))
        at_node.setblocking(False)
    with topology.at(address(B6)).entered():
        run("ip", "neigh", "flush", "dev", "eth0", "nud", "permanent")
    with kept(topology, tmp_path, *OBJECTS, POD_C, DENIED):
        assert passes(topology, receiver, lambda: send(topology, B6, C6))
        with topology.at(address(B6)).entered(), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
            run("ip", "addr", "add", "fe80::2/64", "dev", "eth0", "nodad")
            sender.bind(("fe80::2", 0, 0, socket.if_nametoindex("eth0")))
            before = drops(topology, FOREIGN)
            for _ in range(5):
                sender.sendto(b"hello", ("fe80::1", PORT, 0, socket.if_nametoindex("eth0")))
        eventually(lambda: drops(topology, FOREIGN) >= before + 5, "the drops")
        with pytest.raises(BlockingIOError):
            at_node.recv(64)
    at_node.close()
    receiver.close()


def test_an_interface_with_a_gateway_is_no_pod_interface(topology: Topology, tmp_path: Path) -> None:
    at_b = Receiver(topology, B)
    with topology.router.entered():
        run("ip", "route", "add", "203.0.113.0/24", "via", C, "dev", "v2", "onlink")
    with kept(topology, tmp_path, *OBJECTS, DENIED) as follower:
        assert passes(topology, at_b, lambda: send(topology, C, B))
        assert not passes(topology, at_b, lambda: forge(topology, C, A, B)), "a pod's address counts on no other link"
        with topology.router.entered():
            run("ip", "route", "del", "203.0.113.0/24")
        follower.look()
        assert not passes(topology, at_b, lambda: send(topology, C, B), NOT_KNOWN)
    at_b.close()


def test_an_interface_of_the_same_name_belongs_to_the_new_pod_only(topology: Topology, tmp_path: Path) -> None:
    at_b = Receiver(topology, B)
    new = "10.0.0.9"
    with kept(topology, tmp_path, *OBJECTS, POD_C, DENIED) as follower:
        with topology.router.entered():
            run("ip", "link", "set", "v2", "down")
            run("ip", "link", "set", "v2", "name", "old")
            run("ip", "link", "set", "v0", "down")
            run("ip", "link", "set", "v0", "name", "v2")
            run("ip", "link", "set", "v2", "up")
            run("ip", "route", "add", new, "dev", "v2")
            run("ip", "neigh", "replace", new, "lladdr", "02:00:00:00:00:02", "dev", "v2", "nud", "permanent")
        # Before anybody has looked: the new pod has the interface's name, but no address that counts there.
        assert dropped(topology, at_b, lambda: forge(topology, A, new, B), FOREIGN)
        follower.change(*OBJECTS[:1], *OBJECTS[2:], DENIED, two_family_pod("new", new, "fd00::9", "new"))
        assert passes(topology, at_b, lambda: forge(topology, A, new, B))
        assert not passes(topology, at_b, lambda: forge(topology, A, C, B)), "the old address is gone"
    at_b.close()


def test_routes_of_whole_networks_tell_the_interface_too(topology: Topology, tmp_path: Path) -> None:
    at_b = Receiver(topology, B)
    with topology.router.entered():
        run("ip", "route", "del", C)
        run("ip", "addr", "add", "10.0.0.30/28", "dev", "v2")
        run("ip", "route", "add", "10.0.0.0/28", "dev", "v2")
    with kept(topology, tmp_path, *OBJECTS, POD_C, DENIED):
        assert passes(topology, at_b, lambda: send(topology, C, B))
        assert not passes(topology, at_b, lambda: forge(topology, C, "10.0.0.4", B))
    at_b.close()


def script(path: Path, body: str) -> CommandLookup:
    """A command that counts its runs in a file, and then does something else."""
    program = path / "interface-of"
    program.write_text(f"#!/bin/sh\necho $1 >> {path}/asked\n{body}\n")
    program.chmod(0o755)
    return CommandLookup([str(program)])


def asked(path: Path) -> list[str]:
    return sorted((path / "asked").read_text().split())


def test_a_command_is_asked_once_for_each_pod(topology: Topology, tmp_path: Path) -> None:
    at_b = Receiver(topology, B)
    lookup = script(tmp_path, "case $1 in shop/a) echo v0;; shop/b) echo v1;; shop/c) echo v2;; esac")
    with kept(topology, tmp_path, *OBJECTS, DENIED, finder=InterfaceFinder(lookup)) as follower:
        assert asked(tmp_path) == ["shop/a", "shop/b"]
        assert not passes(topology, at_b, lambda: forge(topology, A, C, B))
        assert not passes(topology, at_b, lambda: send(topology, C, B), NOT_KNOWN)
        follower.change(*OBJECTS, DENIED, POD_C)
        # Nothing waits for the command: the pod is closed until the command has answered.
        eventually(lambda: len(asked(tmp_path)) == 3, "the command")

        def known() -> bool:
            follower.look()
            return not lookup.problems()

        eventually(known, "the answer")
        assert passes(topology, at_b, lambda: send(topology, C, B))
        follower.change(*OBJECTS, POD_C, DENIED, network_policy("shop/x", podSelector=IMPOSSIBLE))
        assert asked(tmp_path) == ["shop/a", "shop/b", "shop/c"]
        # Another interface of that name is another interface.
        with topology.router.entered():
            run("ip", "link", "set", "v2", "down")
            run("ip", "link", "set", "v2", "name", "old")
            run("ip", "link", "add", "v2", "type", "veth", "peer", "name", "new")
        follower.look()
        eventually(lambda: asked(tmp_path).count("shop/c") == 2, "the second question")
    at_b.close()


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("exit 3", "ended with code 3"),
        ("true", "printed nothing"),
        ("echo nowhere", "no interface `nowhere`"),
        ("echo lo", "loopback"),
        ("echo uplink", "leads to a gateway"),
        ("echo 'v1\"; drop table'", "expected names of interfaces"),
        ("echo 'v*'", "expected names of interfaces"),
        ("yes | head -c 100000", "more than 4096 bytes"),
        ("printf '\\377\\000'", "expected names of interfaces"),
        ("sleep 1000 & sleep 1000", "took longer"),
        ("(sleep 1000 &) ; echo v1", "took longer"),
    ],
)
def test_a_command_that_fails_leaves_its_pod_unknown(
    topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, problem: str
) -> None:
    monkeypatch.setattr("tierwall.engines.nftables.kernel.lookups.SECONDS", 1.0)
    with topology.router.entered():
        run("ip", "link", "add", "uplink", "type", "veth", "peer", "name", "far-end")
        run("ip", "link", "set", "uplink", "up")
        run("ip", "route", "add", "203.0.113.0/24", "via", "192.0.2.1", "dev", "uplink", "onlink")
    at_c = Receiver(topology, C)
    lookup = script(tmp_path, f"case $1 in shop/a) echo v0;; shop/c) echo v2;; *) {body};; esac")
    with kept(topology, tmp_path, *OBJECTS, POD_C, DENIED, finder=InterfaceFinder(lookup)) as follower:
        (said,) = [
            diagnostic.message
            for diagnostic in follower.keeper.report(follower.load).diagnostics
            if diagnostic.code == "TW608"
        ]
        assert said.startswith("the interface of pod `shop/b` is not known: ")
        assert problem in said
        assert not passes(topology, at_c, lambda: send(topology, B, C), NOT_KNOWN)
        assert not passes(topology, at_c, lambda: forge(topology, A, B, C))
    at_c.close()


def cni_result(name: str, *interfaces: str) -> bytes:
    """Return a result as libcni caches it."""
    arguments = [["IgnoreUnknown", "true"], ["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", name]]
    outside = [{"name": interface, "mac": "02:00:00:00:00:01"} for interface in interfaces]
    inside = {"name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": f"/var/run/netns/{name}"}
    result = {"cniVersion": "1.0.0", "interfaces": [*outside, inside], "ips": [], "dns": {}}
    return msgspec.json.encode(
        {"kind": "cniCacheV1", "containerId": name, "ifName": "eth0", "cniArgs": arguments, "result": result}
    )


def test_cached_results_of_cni_plugins_tell_the_interfaces(topology: Topology, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    (results / "net-a-eth0").write_bytes(cni_result("a", "v0"))
    (results / "net-b-eth0").write_bytes(cni_result("b", "gone", "v1"))
    (results / "net-c-eth0").write_text("{")
    at_b = Receiver(topology, B)
    finder = InterfaceFinder(CniLookup(str(results)))
    with kept(topology, tmp_path, *OBJECTS, POD_C, DENIED, finder=finder) as follower:
        assert not passes(topology, at_b, lambda: send(topology, C, B), NOT_KNOWN)
        assert not passes(topology, at_b, lambda: forge(topology, A, C, B))
        (results / "net-c-eth0").write_bytes(cni_result("c", "v2"))

        def known() -> bool:
            follower.look()
            return not finder.is_incomplete

        eventually(known, "the result")
        assert passes(topology, at_b, lambda: send(topology, C, B))
    at_b.close()


def test_only_interfaces_with_the_given_names_are_pod_interfaces(topology: Topology, tmp_path: Path) -> None:
    at_b = Receiver(topology, B)
    for patterns, closed in ((("v0", "v1"), False), (("v*",), True)):
        options = TableOptions(pod_interfaces=patterns, rate=0)
        with kept(topology, tmp_path, *OBJECTS, DENIED, options=options):
            assert passes(topology, at_b, lambda: send(topology, C, B), NOT_KNOWN) is not closed
            assert not passes(topology, at_b, lambda: forge(topology, A, C, B))
    at_b.close()


def test_a_restart_finds_the_table_with_its_guard_in_force(topology: Topology, tmp_path: Path) -> None:
    objects = [*OBJECTS, DENIED]
    with kept(topology, tmp_path, *objects), topology.router.entered():
        before = list_text()
    with kept(topology, tmp_path, *objects) as follower, topology.router.entered():
        assert follower.keeper.report(follower.load).summary.endswith(" in force already")
        assert list_text() == before
        run("nft", "delete", "element", "inet", "tierwall", "sources4", f'{{ "v0" . {A} }}')
        run("nft", "add", "element", "inet", "tierwall", "interfaces", '{ "v9" }')
    with kept(topology, tmp_path, *objects), topology.router.entered():
        assert sorted(list_text().splitlines()) == sorted(before.splitlines())
        table = read_table()
        assert table is not None
        assert set(table.sets["sources4"].elements) == {("v0", address(A)), ("v1", address(B))}


def test_the_command_line_follows_interfaces(topology: Topology, tmp_path: Path) -> None:
    at_b = Receiver(topology, B)
    objects = Objects(tmp_path, *OBJECTS, POD_C, DENIED)
    program = tmp_path / "interface-of"
    program.write_text("#!/bin/sh\ncase $2 in shop/a) echo v0;; shop/b) echo v1;; shop/c) cat $1;; esac\n")
    program.chmod(0o755)
    (tmp_path / "answer").write_text("")
    tierwall = str(Path(sys.executable).parent / "tierwall")
    with topology.router.entered():
        command = [tierwall, "enforce", "nft", str(objects.path), "--watch", "--log-rate", "0", "--interface-of"]
        words = f"{program} '{tmp_path}/answer'"
        process = subprocess.Popen([*command, words], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        while not (line := process.stderr.readline()).endswith(" applied\n"):
            assert line
        assert not passes(topology, at_b, lambda: send(topology, C, B), NOT_KNOWN)
        # The command is asked again, though no file and no interface changes.
        (tmp_path / "answer").write_text("v2\n")
        while process.stderr.readline() != "interfaces followed\n":
            assert process.poll() is None
        assert passes(topology, at_b, lambda: send(topology, C, B))
        # A new interface is closed from its first packet on.
        with topology.router.entered():
            run("ip", "link", "set", "v2", "down")
            run("ip", "link", "set", "v2", "name", "other")
            run("ip", "link", "set", "other", "up")
        assert dropped(topology, at_b, lambda: send(topology, C, B), NOT_KNOWN)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()
    at_b.close()
