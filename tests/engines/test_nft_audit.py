"""The audit trail: drops and allows by pod, policy and rule; shadow mode; counters."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.labs.nft_kernel import need_kernel
from tests.worlds.nft_clusters import address, admin_policy, namespace, network_policy, pod, shadowed
from tierwall.core.diagnostics import InputError
from tierwall.core.protocols import DecisionEvent
from tierwall.engines.nftables.kernel.apply import apply
from tierwall.engines.nftables.kernel.audit import AuditNames, event, hits
from tierwall.engines.nftables.kernel.nflog import LogReader as Reader
from tierwall.engines.nftables.kernel.nflog import parse_packet
from tierwall.engines.nftables.probe.packets import Probe, ProbeResult, sctp_init, send_probes
from tierwall.engines.nftables.probe.topology import Topology
from tierwall.engines.nftables.table.compile import compile_model
from tierwall.engines.nftables.table.options import LogScope, TableOptions
from tierwall.network.model.model import NetworkModel
from tierwall.render import engines
from tierwall.render.engines import event_document, event_line
from tierwall.render.formats import View
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

pytestmark = pytest.mark.engine

WEB, DB, OUT = "10.0.0.1", "10.0.0.2", "203.0.113.7"
GROUP, OTHER = 7, 8
BASE = [
    namespace("shop"),
    namespace("data"),
    pod("shop/web-0", WEB, app="web"),
    pod("data/db-0", DB, app="db"),
]
DENY_ALL = network_policy("data/deny-all", podSelector={}, policyTypes=["Ingress"])


@pytest.fixture
def topology() -> Iterator[Topology]:
    need_kernel()
    new_topology = Topology([(address(name),) for name in (WEB, DB, OUT)])
    yield new_topology
    new_topology.close()


def tried(
    topology: Topology,
    policies: list[Any],
    probes: list[tuple[str, str, str, int]],
    log: LogScope = LogScope.DROP,
    rate: int = 0,
) -> tuple[list[ProbeResult], list[DecisionEvent]]:
    """Send packets; return their results, and the events that an audit in another group saw."""
    model = NetworkModel(Snapshot.of(load_objects([*BASE, *policies])))
    wanted = [
        Probe(address(source), address(destination), protocol, port) for source, destination, protocol, port in probes
    ]
    with topology.router.entered():
        apply(compile_model(model, TableOptions(log=log, group=OTHER, rate=rate)).table)
        audit, fates_log = Reader(OTHER, at_once=True), Reader(GROUP, at_once=True)
        try:
            results = send_probes(topology, wanted, fates_log, patience=1.0)
            names = AuditNames()
            events = [event(logged, names) for logged in audit.read()]
        finally:
            audit.close()
            fates_log.close()
    return results, events


def told(event: DecisionEvent) -> dict[str, Any]:
    """Return the document of an event, without what differs from run to run."""
    document = event_document(event)
    del document["time"], document["from"]["port"]
    return document


def test_a_drop_names_pods_policy_and_rule(topology: Topology) -> None:
    rule = {"action": "Deny", "to": [{"networks": ["203.0.113.0/24"]}], "ports": [{"portNumber": {"port": 443}}]}
    _, events = tried(topology, [admin_policy("no-internet", egress=[rule])], [(WEB, OUT, "TCP", 443)])
    assert told(events[0]) == {
        "verdict": "Deny",
        "direction": "egress",
        "decidedBy": [{"policy": "AdminNetworkPolicy/no-internet", "rule": "egress[0]"}],
        "from": {"namespace": "shop", "pod": "web-0", "ip": WEB},
        "to": {"ip": OUT, "port": 443},
        "protocol": "TCP",
    }
    assert " Deny egress TCP shop/web-0 (10.0.0.1:" in event_line(events[0])
    assert event_line(events[0]).endswith(") -> 203.0.113.7:443 by AdminNetworkPolicy/no-internet egress[0]")


def test_a_policy_without_rules_is_logged_when_it_drops(topology: Topology) -> None:
    results, events = tried(topology, [DENY_ALL], [(WEB, DB, "UDP", 53)])
    assert not results[0].arrived
    assert told(events[0])["decidedBy"] == [{"policy": "NetworkPolicy/data/deny-all", "rule": "spec"}]
    assert told(events[0])["to"] == {"namespace": "data", "pod": "db-0", "ip": DB, "port": 53}


def test_every_isolating_policy_is_named_even_if_the_kernel_has_no_room(topology: Topology) -> None:
    many = [network_policy(f"data/{'x' * 40}-{number}", podSelector={}) for number in range(6)]
    _, events = tried(topology, many, [(WEB, DB, "UDP", 53)], rate=1000)
    names = [str(decider.policy) for decider in events[0].decided_by]
    assert names == [f"NetworkPolicy/data/{'x' * 40}-{number}" for number in range(6)]


@pytest.mark.parametrize("rate", [0, 1000])
@pytest.mark.parametrize("name", ["no-internet", "no internet, (for now)", 'an "odd" näme', "a" * 60])
def test_the_name_of_a_rule_is_shown(topology: Topology, name: str, rate: int) -> None:
    rule = {"name": name, "action": "Deny", "to": [{"networks": ["203.0.113.0/24"]}]}
    _, events = tried(topology, [admin_policy("guard", egress=[rule])], [(WEB, OUT, "TCP", 443)], rate=rate)
    shown = name.replace('"', "?").replace("ä", "?")
    assert told(events[0])["decidedBy"] == [{"policy": "AdminNetworkPolicy/guard", "rule": "egress[0]", "name": shown}]
    assert event_line(events[0]).endswith(f" by AdminNetworkPolicy/guard egress[0] ({shown})")
    with topology.router.entered():
        counted = hits()
    assert json.loads(engines.hits_json(counted, View()))["hits"][0]["name"] == shown
    assert any(line.endswith(f"AdminNetworkPolicy/guard egress[0] ({shown})") for line in engines.hits(counted, View()))
    assert f'policy="AdminNetworkPolicy/guard",rule="egress[0]",name="{shown}",' in engines.metrics(counted, View())


@pytest.mark.parametrize("policy", ["guard", "g" * 80, "g" * 200])
def test_a_name_too_long_for_the_kernel_is_read_from_the_log_chain(topology: Topology, policy: str) -> None:
    rule = {"name": "n" * 100, "action": "Deny", "to": [{"networks": ["203.0.113.0/24"]}]}
    _, events = tried(topology, [admin_policy(policy, egress=[rule])], [(WEB, OUT, "TCP", 443)], rate=1000)
    (decider,) = events[0].decided_by
    assert decider.name == "n" * 100
    assert str(decider.policy).startswith(f"AdminNetworkPolicy/{policy[:90]}")
    with topology.router.entered():
        (hit,) = hits()
    assert hit.decided_by[0].rule == "egress[0]"


def test_a_rule_that_gets_another_name_is_counted_anew(topology: Topology) -> None:
    rule = {"name": "first", "action": "Deny", "to": [{"networks": ["203.0.113.0/24"]}]}
    tried(topology, [admin_policy("guard", egress=[rule])], [(WEB, OUT, "UDP", 1)])
    tried(topology, [admin_policy("guard", egress=[rule | {"name": "second"}])], [(WEB, OUT, "UDP", 1)] * 2)
    with topology.router.entered():
        assert [(hit.decided_by[0].name, hit.packets) for hit in hits()] == [("second", 2)]


def test_allows_are_logged_where_asked(topology: Topology) -> None:
    allow = network_policy("data/allow", podSelector={}, ingress=[{"ports": [{"protocol": "UDP", "port": 53}]}])
    results, events = tried(topology, [allow], [(WEB, DB, "UDP", 53)])
    assert (results[0].arrived, events) == (True, [])
    results, events = tried(topology, [allow], [(WEB, DB, "UDP", 53)], log=LogScope.ALL)
    assert results[0].arrived
    assert [(event.verdict, event.decided_by[0].rule) for event in events] == [("Allow", "ingress[0]")]
    _, events = tried(topology, [DENY_ALL], [(WEB, DB, "UDP", 53)], log=LogScope.NONE)
    assert events == []


def test_a_watched_policy_is_logged_and_not_enforced(topology: Topology) -> None:
    deny = admin_policy("strict", egress=[{"action": "Deny", "to": [{"namespaces": {}}]}])
    policies = [shadowed(deny), shadowed(DENY_ALL)]
    for rate in (0, 1000):
        results, events = tried(topology, policies, [(WEB, DB, "UDP", 53)], rate=rate)
        assert results[0].arrived
        documents = [told(event) for event in events]
        assert [(document["mode"], document["verdict"], document["direction"]) for document in documents] == [
            ("shadow", "Deny", "egress"),
            ("shadow", "Deny", "ingress"),
        ]
        assert " would deny " in event_line(events[0])


def test_a_watched_policy_beside_enforced_ones_shows_what_it_would_open(topology: Topology) -> None:
    opening = network_policy("data/opening", podSelector={}, ingress=[{"ports": [{"protocol": "UDP", "port": 53}]}])
    for rate in (0, 1000):
        results, events = tried(topology, [DENY_ALL, shadowed(opening)], [(WEB, DB, "UDP", 53)], rate=rate)
        assert not results[0].arrived
        assert [(event.shadow, event.verdict) for event in events] == [(True, "Allow"), (False, "Deny")]


def test_the_log_is_limited_per_rule(topology: Topology) -> None:
    probes = [(WEB, DB, "UDP", port) for port in range(1000, 1200)]
    start = time.monotonic()
    _, events = tried(topology, [DENY_ALL], probes, rate=10)
    assert 20 <= len(events) <= 20 + 10 * (time.monotonic() - start + 1)


def test_every_rule_counts_what_it_settles(topology: Topology) -> None:
    deny = admin_policy("strict", egress=[{"action": "Deny", "to": [{"networks": ["203.0.113.0/24"]}]}])
    tried(topology, [deny, DENY_ALL], [(WEB, OUT, "UDP", 1), (WEB, OUT, "UDP", 2), (WEB, DB, "UDP", 53)], rate=10)
    with topology.router.entered():
        counted = hits()
    assert [(list(map(str, hit.decided_by)), hit.action, hit.packets) for hit in counted] == [
        (["AdminNetworkPolicy/strict egress[0]"], "Deny", 2),
        (["NetworkPolicy/data/deny-all spec"], "Deny", 1),
    ]
    assert (
        'tierwall_rule_packets_total{policy="AdminNetworkPolicy/strict",rule="egress[0]",name="",direction="egress",'
        'action="Deny",mode="enforced"} 2\n'
    ) in engines.metrics(counted, View())
    # Counts survive a change of policies that leaves the rule as it was.
    with topology.router.entered():
        apply(compile_model(NetworkModel(Snapshot.of(load_objects([*BASE, deny])))).table)
        assert [hit.packets for hit in hits()] == [2]


def test_the_command_streams_what_is_dropped(topology: Topology) -> None:
    model = NetworkModel(Snapshot.of(load_objects([*BASE, DENY_ALL])))
    command = [str(Path(sys.executable).parent / "tierwall"), "audit", "-o", "json", "--count", "1", "--seconds", "90"]
    with topology.router.entered():
        apply(compile_model(model, TableOptions()).table)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with topology.at(address(WEB)).entered():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while process.poll() is None:
        # The audit sees what is logged from its start on, but does not say when that is.
        sender.sendto(b"x", (DB, 53))
        time.sleep(0.05)
    sender.close()
    output, _ = process.communicate()
    event = msgspec.json.decode(output)
    assert process.returncode == 0
    assert (event["verdict"], event["from"]["pod"], event["to"]["pod"]) == ("Deny", "web-0", "db-0")


def test_a_second_audit_of_the_same_group_is_refused(topology: Topology) -> None:
    with topology.router.entered():
        first = Reader(GROUP)
        with pytest.raises(InputError, match="another program already reads NFLOG group 7"):
            Reader(GROUP)
        first.close()


@pytest.mark.parametrize("packet", [b"", b"\x45", b"\x60" + b"\0" * 20, b"\x45" + b"\0" * 18, b"\xff" * 64])
def test_bytes_that_are_not_a_packet_are_ignored(packet: bytes) -> None:
    assert parse_packet(packet) is None


def test_an_sctp_packet_has_the_checksum_that_the_kernel_wants() -> None:
    # The example of RFC 3720, appendix B.4: CRC32c of 32 zero bytes is 0x8a9136aa.
    from tierwall.engines.nftables.probe.packets import crc32c

    assert crc32c(b"\0" * 32) == 0x8A9136AA
    assert len(sctp_init(1, 2)) == 32
