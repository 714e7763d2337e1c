"""A policy file that is rewritten in place, again and again: the kernel never sees a moment without the policy."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.labs.nft_kernel import need_kernel
from tests.labs.waiting import eventually
from tests.randomness import rounds
from tests.worlds.nft_clusters import namespace, network_policy, pod
from tierwall.engines.nftables.kernel.audit import hits
from tierwall.engines.nftables.probe.topology import Topology
from tierwall.values.addresses import parse_address

pytestmark = pytest.mark.engine

A, B = "10.0.0.1", "10.0.0.2"
PORT = 7000
PODS = [namespace("shop"), pod("shop/a", A, app="a"), pod("shop/b", B, app="b")]
DENIED = network_policy("shop/no-egress", podSelector={"matchLabels": {"app": "a"}}, policyTypes=["Egress"])


def written(objects: list[Any], number: int) -> bytes:
    """Return objects as a file; each number gives another text."""
    return msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects}) + b"\n" * (number % 7)


@pytest.fixture
def topology() -> Iterator[Topology]:
    need_kernel()
    places = [(address,) for address in map(parse_address, (A, B)) if address is not None]
    new_topology = Topology(places)
    yield new_topology
    new_topology.close()


@pytest.mark.storm
def test_rewriting_a_policy_file_in_place_lets_nothing_through(topology: Topology, tmp_path: Path) -> None:
    policies = tmp_path / "policies.json"
    policies.write_bytes(written([DENIED], 0))
    (tmp_path / "pods.json").write_bytes(written(PODS, 0))
    hosts = dict(zip((A, B), topology.hosts, strict=True))
    with hosts[B].entered():
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((B, PORT))
        receiver.setblocking(False)
    with hosts[A].entered():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.bind((A, 0))
    stop = threading.Event()

    def keep_trying() -> None:
        while not stop.is_set():
            sender.sendto(b"forbidden", (B, PORT))
            time.sleep(0.001)

    def received() -> bool:
        try:
            return bool(receiver.recv(64))
        except BlockingIOError:
            return False

    def dropped() -> int:
        with topology.router.entered():
            return sum(hit.packets for hit in hits())

    tierwall = str(Path(sys.executable).parent / "tierwall")
    with topology.router.entered():
        process = subprocess.Popen(
            [tierwall, "enforce", "nft", str(tmp_path), "--watch"], stderr=subprocess.PIPE, text=True
        )
    assert process.stderr is not None
    trying, reading = threading.Thread(target=keep_trying), threading.Thread(target=process.stderr.read)
    try:
        while not (line := process.stderr.readline()).endswith(" applied\n"):
            assert line
        reading.start()
        trying.start()
        eventually(lambda: dropped() > 0, "the first drop")
        for number in range(rounds(100)):
            text = written([DENIED], number + 1)
            with policies.open("wb") as file:
                # Truncated, half written, whole: each for long enough to be noticed.
                time.sleep(0.02)
                file.write(text[: len(text) // 2])
                file.flush()
                time.sleep(0.02)
                file.write(text[len(text) // 2 :])
        before = dropped()
        eventually(lambda: dropped() > before, "drops after the last rewrite")
        assert not received(), "a packet passed while the file was rewritten"
        # A policy that is removed is out: what keeps the packets out is the policy alone.
        policies.unlink()
        eventually(received, "a packet after the policy was removed")
    finally:
        stop.set()
        process.kill()
        process.wait()
        for thread in (trying, reading):
            if thread.ident is not None:
                thread.join()
        process.stderr.close()
    for opened in (sender, receiver):
        opened.close()
