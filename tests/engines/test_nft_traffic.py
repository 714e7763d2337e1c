"""Policy changes under traffic: what both policies forbid never passes, and what both allow never breaks."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.labs.nft_kernel import need_kernel
from tests.labs.waiting import PATIENCE_S, eventually
from tests.randomness import rounds
from tests.worlds.nft_clusters import address, admin_policy, namespace, network_policy, pod
from tierwall.engines.nftables.kernel.apply import apply, execute, remove
from tierwall.engines.nftables.kernel.audit import hits
from tierwall.engines.nftables.kernel.conntrack import cut
from tierwall.engines.nftables.kernel.programs import run
from tierwall.engines.nftables.probe.topology import Topology
from tierwall.engines.nftables.table.compile import CompiledTable, compile_model
from tierwall.engines.nftables.table.options import TableOptions
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import RuleAction
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

pytestmark = pytest.mark.engine

CLIENT, SERVER = "10.0.0.1", "10.0.0.2"
OPEN, CLOSED = 80, 81
SWAPS = rounds(150)

BASE = [
    namespace("a", team="a"),
    namespace("b", team="b"),
    pod("a/client", CLIENT),
    pod("b/server", SERVER),
]


def compiled(*policies: Any) -> CompiledTable:
    return compile_model(NetworkModel(Snapshot.of(load_objects([*BASE, *policies]))))


def about(team: str, **spec: Any) -> Any:
    return admin_policy(f"about-{team}", subject={"namespaces": {"matchLabels": {"team": team}}}, **spec)


def deny(peers: str, port: int) -> Any:
    ports = [{"portNumber": {"protocol": protocol, "port": port}} for protocol in ("TCP", "UDP")]
    return [{"action": "Deny", peers: [{"namespaces": {}}], "ports": ports}]


@pytest.fixture
def topology() -> Iterator[Topology]:
    need_kernel()
    new_topology = Topology([(address(CLIENT),), (address(SERVER),)])
    yield new_topology
    new_topology.close()


def opened(topology: Topology, where: str, kind: int, place: tuple[str, int]) -> socket.socket:
    with topology.at(address(where)).entered():
        sock = socket.socket(socket.AF_INET, kind)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.settimeout(PATIENCE_S)
    sock.bind(place)
    return sock


def dropped(topology: Topology) -> int:
    """Return the number of packets of new connections that policies have dropped."""
    with topology.router.entered():
        return sum(hit.packets for hit in hits() if hit.action is RuleAction.DENY)


class Busy:
    """Threads that work until they are told to stop; an error in one of them is raised at the end."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._wrong: list[BaseException] = []
        self.rounds: dict[str, int] = {}

    def start(self, name: str, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                while not self.stop.is_set():
                    work()
                    self.rounds[name] = self.rounds.get(name, 0) + 1
            except BaseException as error:
                self._wrong.append(error)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        if self._wrong:
            raise self._wrong[0]


@pytest.mark.storm
def test_a_swap_opens_nothing_and_breaks_nothing(topology: Topology) -> None:
    # One policy forbids it to the source, the other to the destination. A mixture of the two would let it pass.
    old, new = compiled(about("a", egress=deny("to", CLOSED))), compiled(about("b", ingress=deny("from", CLOSED)))
    with topology.router.entered():
        apply(old.table)
    closed = opened(topology, SERVER, socket.SOCK_DGRAM, (SERVER, CLOSED))
    listener = opened(topology, SERVER, socket.SOCK_STREAM, (SERVER, OPEN))
    listener.listen(64)
    steady = opened(topology, CLIENT, socket.SOCK_STREAM, (CLIENT, 0))
    steady.connect((SERVER, OPEN))
    other, _ = listener.accept()
    other.settimeout(PATIENCE_S)
    sender = opened(topology, CLIENT, socket.SOCK_DGRAM, (CLIENT, 0))
    busy = Busy()

    def flood() -> None:
        for _ in range(100):
            sender.sendto(b"forbidden", (SERVER, CLOSED))

    def echo() -> None:
        steady.sendall(b"x" * 512)
        assert other.recv(4096)
        other.sendall(b"y" * 512)
        assert steady.recv(4096)

    def connect() -> None:
        client = opened(topology, CLIENT, socket.SOCK_STREAM, (CLIENT, 0))
        client.connect((SERVER, OPEN))
        listener.accept()[0].close()
        client.close()

    busy.start("flood", flood)
    busy.start("echo", echo)
    busy.start("connect", connect)
    try:
        with topology.router.entered():
            for number in range(SWAPS):
                apply((new, old)[number % 2].table)
    finally:
        busy.end()
    closed.setblocking(False)
    with pytest.raises(BlockingIOError):
        closed.recv(64)
    assert min(busy.rounds[name] for name in ("flood", "echo", "connect")) > 10
    for opened_socket in (closed, listener, steady, other, sender):
        opened_socket.close()


def test_the_first_table_leaves_allowed_connections_open(topology: Topology) -> None:
    listener = opened(topology, SERVER, socket.SOCK_STREAM, (SERVER, OPEN))
    listener.listen()
    client = opened(topology, CLIENT, socket.SOCK_STREAM, (CLIENT, 0))
    client.connect((SERVER, OPEN))
    server, _ = listener.accept()
    with topology.router.entered():
        apply(compiled(about("b", ingress=deny("from", CLOSED))).table)
    client.sendall(b"still")
    server.settimeout(PATIENCE_S)
    assert server.recv(16) == b"still"
    server.sendall(b"here")
    assert client.recv(16) == b"here"
    for opened_socket in (listener, client, server):
        opened_socket.close()


@pytest.mark.parametrize("cuts", [True, False])
@pytest.mark.parametrize("first", ["client", "server"])
def test_a_connection_that_a_new_policy_forbids_is_cut_if_wanted(topology: Topology, cuts: bool, first: str) -> None:
    strict = compiled(about("b", ingress=deny("from", OPEN)))
    listener = opened(topology, SERVER, socket.SOCK_STREAM, (SERVER, OPEN))
    listener.listen()
    client = opened(topology, CLIENT, socket.SOCK_STREAM, (CLIENT, 0))
    with topology.router.entered():
        apply(compiled().table)
    client.connect((SERVER, OPEN))
    server, _ = listener.accept()
    with topology.router.entered():
        apply(strict.table)
        assert (cut(strict.compiler.model, strict.compiler) if cuts else 0) == cuts
    ends = {"client": client, "server": server}
    sender = ends.pop(first)
    (receiver,) = ends.values()
    # By policy, the server may talk to the client. Only a packet in the middle of nothing gives it away.
    sender.sendall(b"anybody there?")
    # Nothing counts the dropped packets of a connection that was cut, so the only way is to wait for a time.
    receiver.settimeout(0.5 if cuts else PATIENCE_S)
    if cuts:
        with pytest.raises(TimeoutError):
            receiver.recv(64)
    else:
        assert receiver.recv(64) == b"anybody there?"
    for opened_socket in (listener, client, server):
        opened_socket.close()


def test_cutting_leaves_allowed_connections_alone(topology: Topology) -> None:
    policies = compiled(about("b", ingress=deny("from", CLOSED)))
    listener = opened(topology, SERVER, socket.SOCK_STREAM, (SERVER, OPEN))
    listener.listen()
    client = opened(topology, CLIENT, socket.SOCK_STREAM, (CLIENT, 0))
    with topology.router.entered():
        apply(policies.table)
    client.connect((SERVER, OPEN))
    server, _ = listener.accept()
    with topology.router.entered():
        start = time.perf_counter()
        assert cut(policies.compiler.model, policies.compiler) == 0
        assert time.perf_counter() - start < PATIENCE_S
        remove()
    client.sendall(b"fine")
    server.settimeout(PATIENCE_S)
    assert server.recv(16) == b"fine"
    for opened_socket in (listener, client, server):
        opened_socket.close()


@pytest.mark.parametrize("exempt", ["nothing", "probes", "both"])
def test_a_node_and_its_own_pods_are_judged_unless_exempt(topology: Topology, exempt: str) -> None:
    node = "172.18.0.9"
    objects = [
        *BASE,
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "n"},
            "status": {"addresses": [{"type": "InternalIP", "address": node}]},
        },
        about("a", egress=[{"action": "Deny", "to": [{"nodes": {}}]}]),
        network_policy("b/closed", podSelector={}),
    ]
    options = TableOptions(exempt_own_node=exempt == "both", exempt_probes=exempt == "probes")
    with topology.router.entered():
        run("ip", "addr", "add", f"{node}/32", "dev", "lo")
        apply(compile_model(NetworkModel(Snapshot.of(load_objects(objects))), options).table)
        at_node = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        at_node.bind((node, OPEN))
    client = opened(topology, CLIENT, socket.SOCK_DGRAM, (CLIENT, 0))
    server = opened(topology, SERVER, socket.SOCK_DGRAM, (SERVER, OPEN))
    client.sendto(b"to the node", (node, OPEN))
    if exempt == "both":
        at_node.settimeout(PATIENCE_S)
        at_node.sendto(b"from the node", (SERVER, OPEN))
        assert at_node.recv(64) == b"to the node"
        assert server.recv(64) == b"from the node"
    elif exempt == "probes":
        at_node.sendto(b"from the node", (SERVER, OPEN))
        assert server.recv(64) == b"from the node"
        eventually(lambda: dropped(topology) >= 1, "the drop")
        at_node.setblocking(False)
        with pytest.raises(BlockingIOError):
            at_node.recv(64)
    else:
        # The kernel tells a local sender at once that a packet was dropped.
        with pytest.raises(PermissionError):
            at_node.sendto(b"from the node", (SERVER, OPEN))
        eventually(lambda: dropped(topology) >= 2, "both drops")
        for opened_socket in (at_node, server):
            opened_socket.setblocking(False)
            with pytest.raises(BlockingIOError):
                opened_socket.recv(64)
    for opened_socket in (at_node, client, server):
        opened_socket.close()


def test_a_service_is_judged_by_the_pod_and_port_behind_it(topology: Topology) -> None:
    service, port = "10.96.0.1", 8080
    nat = (
        "table ip services {\n chain to {\n  type nat hook prerouting priority dstnat;\n"
        f"  ip daddr {service} tcp dport {OPEN} dnat to {SERVER}:{port}\n }}\n}}\n"
    )
    listener = opened(topology, SERVER, socket.SOCK_STREAM, (SERVER, port))
    listener.listen()
    strict = compiled(about("b", ingress=deny("from", port)))
    with topology.router.entered():
        execute(nat)
        apply(compiled(about("b", ingress=deny("from", OPEN))).table)
    client = opened(topology, CLIENT, socket.SOCK_STREAM, (CLIENT, 0))
    client.connect((service, OPEN))
    server, _ = listener.accept()
    with topology.router.entered():
        apply(strict.table)
        assert cut(strict.compiler.model, strict.compiler) == 1
    client.sendall(b"anybody there?")
    again = opened(topology, CLIENT, socket.SOCK_STREAM, (CLIENT, 0))
    before = dropped(topology)
    again.setblocking(False)
    assert again.connect_ex((service, OPEN)) == errno.EINPROGRESS
    eventually(lambda: dropped(topology) > before, "the drop of the new connection")
    for opened_socket in (server, listener):
        opened_socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.recv(64)
    with pytest.raises(BlockingIOError):
        listener.accept()
    for opened_socket in (listener, client, server, again):
        opened_socket.close()
