"""The sets by which a change of a network policy is judged give what models and decisions give."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from bench.varied import SHAPES, Shape, VariedCluster
from tests.network.test_network_change import OF_CHANGES, OVERRIDDEN, brought, changes, codes, outside_changes
from tests.randomness import examples, seeds
from tests.worlds.network_objects import admin, namespace, network_policy, pod, rule
from tests.worlds.network_snapshots import resource, snapshot
from tierwall.analyze import network_change
from tierwall.analyze.change_findings import MAX_VALUES, facts
from tierwall.analyze.network_change import CODES, SHADOWED
from tierwall.analyze.network_checks import network_findings
from tierwall.analyze.network_index import NetworkIndex
from tierwall.analyze.network_selection import SelectionCheck
from tierwall.analyze.rules_by_port import RulesByPort
from tierwall.analyze.selected import SelectedClasses, SelectedPods
from tierwall.core.verdict import StepVerdict
from tierwall.network.decide import decide
from tierwall.network.model.endpoints import LAST_PORT, Endpoint, address_endpoint
from tierwall.network.model.model import NetworkModel, network_model
from tierwall.network.model.policies import read_policy
from tierwall.network.model.rules import Direction, NamedPort, PortRange
from tierwall.network.reach.classes import EndpointClasses, RelevantAttributes
from tierwall.network.reach.membership import Membership
from tierwall.network.reach.pod_index import PodIndex
from tierwall.values.addresses import LAST, Block, Span, parse_address

Object = dict[str, Any]
# Small enough for the whole analysis, with policies of up to 20 rules with 6 peers each.
LONG = replace(SHAPES["long policies"], namespaces=3, admin=8, values=4, ports=12, blocks=12, priorities=3, keys=3)


def drawn(shape: Shape, seed: int, pods: int = 25, policies: int = 16) -> tuple[VariedCluster, list[Object]]:
    """Draw a small cluster. Some pods have no labels, and some are not alone at an address of a block."""
    cluster = VariedCluster(shape, pods, seed, policies=policies)
    objects = list(cluster.objects())
    for number, value in enumerate(value for value in objects if value["kind"] == "Pod"):
        if number % 5 == 0:
            value["metadata"].pop("labels")
    return cluster, objects


def long_changes(seed: int) -> tuple[list[Object], list[tuple[Object | None, Object]]]:
    """Draw a cluster of long policies, and new and changed policies, one of each tier for every pod."""
    cluster, objects = drawn(LONG, seed)
    known = [value for value in objects if value["kind"].endswith("Policy")]
    new = [cluster.local("new"), cluster.admin("new"), cluster.baseline(), cluster.cluster_policy("new")]
    wide = [{**new[0], "spec": {**new[0]["spec"], "podSelector": {}}}]
    wide += [{**value, "spec": {**value["spec"], "subject": {"namespaces": {}}}} for value in new[1:]]
    changed: list[tuple[Object | None, Object]] = []
    for old in random.Random(seed).sample(known, 2):
        draw = cluster.local if old["kind"] == "NetworkPolicy" else cluster.admin
        changed.append((old, {**old, "spec": draw("x")["spec"]}))
    return objects, [*((None, value) for value in (*new, *wide)), *changed]


@pytest.mark.parametrize("seed", seeds(2))
def test_a_change_of_a_long_policy_brings_what_the_whole_analysis_finds(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Of policies that are looked at closely, whatever their length.

    How far a policy is overridden, and which rules never count (TW207), are proofs: these have a limit of effort, and
    the whole analysis also counts policies that would select a namespace if it had other labels.
    """
    monkeypatch.setattr(network_change, "CROWD", 10**6)
    objects, drawn_changes = long_changes(seed)
    compared, judged = 0, {*CODES, "TW214"} - {SHADOWED}
    for old, new in drawn_changes:
        others = [value for value in objects if value is not old]
        before = snapshot([*others, *([old] if old else [])])
        after = before.with_changes(put=[resource(new)])
        about = str(resource(new).reference)
        result = brought(others, old, new)
        if "TW215" in codes(result):
            continue
        compared += 1
        whole = [
            {fact for finding in network_findings(of) if finding.code in judged for fact in facts(finding, about)}
            for of in (before, after)
        ]
        incremental = {fact for finding in result.findings for fact in facts(finding, about)}
        known, wanted = map(without_extent, whole)
        seen = without_extent({fact for fact in incremental if fact[0] in judged - {*OF_CHANGES}})
        assert seen - known == wanted - known
    assert compared > len(drawn_changes) // 2


def without_extent(of: set[Any]) -> set[Any]:
    """Return facts without how far a policy is overridden."""
    return {("overridden", *fact[1:]) if fact[0] in OVERRIDDEN else fact for fact in of}


def assert_selection_is_alike(objects: Sequence[Object], new: Object) -> int:
    """Compare what is said of one policy by sets of pods and by classes. Return how much that is."""
    index = NetworkIndex()
    index.update(snapshot(objects))
    policy = read_policy(index.snapshot, resource(new))
    declared = [value["metadata"]["name"] for value in objects if value["kind"] == "Namespace"]
    with_it = snapshot(objects).with_changes(put=[resource(new)])
    model = network_model(with_it)
    classes = SelectedClasses(model, Membership(EndpointClasses(model)))
    said = [
        [
            (finding.code, finding.message)
            for finding in SelectionCheck(cluster, [policy], declared).findings()
            if finding.code != "TW211"
        ]
        for cluster in (SelectedPods(index, policy), classes)
    ]
    assert said[0] == said[1]
    return len(said[0])


@settings(max_examples=examples(60))
@given(changes())
def test_sets_of_pods_select_what_classes_select(change: tuple[list[Object], Object | None, Object]) -> None:
    objects, _, new = change
    identity = new["kind"], new["metadata"]["name"], new["metadata"].get("namespace")
    others = [
        value
        for value in objects
        if (value["kind"], value["metadata"]["name"], value["metadata"].get("namespace")) != identity
    ]
    assert_selection_is_alike(others, new)


def test_sets_of_pods_select_what_classes_select_for_long_policies() -> None:
    said = 0
    for seed in seeds(3):
        objects, drawn_changes = long_changes(seed)
        said += sum(assert_selection_is_alike(objects, new) for old, new in drawn_changes if old is None)
    assert said > 20


def samples(models: Sequence[NetworkModel]) -> list[tuple[int, str, int]]:
    """An address, protocol and port of every sort that the policies of some models tell apart."""
    attributes = [RelevantAttributes(model) for model in models]
    spans = [span for each in attributes for block in each.blocks for span in block.ranges()]
    addresses = {parse_address("203.0.113.7"), parse_address("2001:db8:ffff::1")}
    addresses |= {bound for low, high in spans for bound in (low, high + 1)}
    ranges = [
        (each.protocol, bound)
        for part in attributes
        for each in part.port_ranges
        for bound in (each.first, each.last + 1)
    ]
    named = [pair for model in models for pod in model.pods for pairs in pod.named_ports.values() for pair in pairs]
    ports = {
        (protocol, number) for protocol, number in (*ranges, *named, ("TCP", 1), ("UDP", 1)) if number <= LAST_PORT
    }
    return [
        (address, *port) for address in addresses if address is not None and address <= LAST for port in sorted(ports)
    ]


@settings(max_examples=examples(40))
@given(outside_changes())
def test_exactly_the_pods_that_a_change_opens_are_counted(
    change: tuple[list[Object], Object | None, Object | None],
) -> None:
    objects, old, new = change
    changed = new or old
    assert changed is not None
    models = [network_model(snapshot([*objects, *([side] if side else [])])) for side in (old, new)]
    drawn_samples = samples(models)

    def reached(model: NetworkModel, pod: Endpoint) -> set[tuple[int, str, int]]:
        return {
            (address, protocol, port)
            for address, protocol, port in drawn_samples
            if decide(model, address_endpoint(address), pod, protocol, port).ingress.outcome.verdict
            is StepVerdict.ALLOW
        }

    opened = {
        str(pod)
        for pod, was in zip(models[1].pods, models[0].pods, strict=True)
        if pod.namespace == changed["metadata"]["namespace"] and pod.under_policy
        if reached(models[1], pod) - reached(models[0], was)
    }
    told = [finding for finding in brought(objects, old, new).findings if finding.code == "TW217"]
    assert bool(told) is bool(opened)
    if told:
        words = re.search(r" opens (.*?) to ", told[0].message)
        assert words is not None
        assert set(re.findall(r"[^\s,]+/[^\s,]+", words[1])) <= opened
        more = re.search(r"(\d+) more", words[1])
        assert words[1].count("/") + (int(more[1]) if more else 0) == len(opened)


def test_rules_by_port_are_those_that_match_it() -> None:
    for seed in seeds(3):
        _, objects = drawn(LONG, seed, policies=30)
        empty = snapshot([])
        policies = [read_policy(empty, resource(value)) for value in objects if value["kind"].endswith("Policy")]
        chosen = random.Random(seed)
        for direction in Direction:
            by_port = RulesByPort(direction)
            present: list[Any] = []
            for policy in policies:
                by_port.add(policy)
                present.append(policy)
                if chosen.random() < 0.3:
                    by_port.remove(present.pop(chosen.randrange(len(present))))
                port = PortRange(chosen.choice(("TCP", "UDP")), *[chosen.randrange(1, 62_000)] * 2)
                wanted = [
                    each
                    for other in present
                    for each in other.rules(direction) or ()
                    if each.ports is None
                    or any(
                        isinstance(entry, NamedPort)
                        or (entry.protocol == port.protocol and entry.first <= port.first <= entry.last)
                        for entry in each.ports
                    )
                ]
                assert {each for _, each in by_port.at(port)} == set(wanted)


def test_pods_in_a_block_are_found_as_pods_come_and_go() -> None:
    for seed in seeds(2):
        chosen = random.Random(seed)
        index = PodIndex()
        present: dict[str, Object] = {}
        for _ in range(4):
            for name in chosen.sample(sorted(present), len(present) // 3):
                del present[name]
            for _ in range(200):
                name = f"p{chosen.randrange(1000)}"
                address = f"10.0.{chosen.randrange(8)}.{chosen.randrange(256)}"
                present[name] = {**pod("shop", name), "status": {"podIPs": [{"ip": address}, {"ip": "fd00::1"}]}}
            index.update(snapshot([namespace("shop"), *present.values()]))
            for _ in range(20):
                first = parse_address("10.0.0.0")
                assert first is not None
                low, high = sorted(first + chosen.randrange(9 * 256) for _ in "ab")
                block = Block(Span(low, high), (Span(low + 3, low + chosen.randrange(3, 300)),))
                wanted = {name for name, value in present.items() if any(map(block.contains, addresses_of(value)))}
                assert {name for _, name in index.names_of(index.in_block(block))} == wanted


def addresses_of(value: Object) -> list[int]:
    """Return the addresses of a pod."""
    return [address for each in value["status"]["podIPs"] if (address := parse_address(each["ip"])) is not None]


SHOP = [namespace("shop"), pod("shop", "web", app="web")]


@pytest.mark.parametrize("was_long", [True, False])
def test_a_policy_with_very_many_values_is_not_read_and_that_is_said(was_long: bool) -> None:
    blocks = [{"ipBlock": {"cidr": f"10.{number >> 8}.{number & 255}.0/24"}} for number in range(MAX_VALUES)]
    long, short = network_policy("new", {"from": blocks}), network_policy("new", {"from": blocks[:1]})
    result = brought(SHOP, long if was_long else None, short if was_long else long)
    (finding,) = result.findings
    assert finding.code == "TW215"
    assert finding.message == "NetworkPolicy/shop/new was not checked: it has more than 3,000 values"


def test_what_a_policy_opens_that_was_too_large_to_compare_is_not_known() -> None:
    large = network_policy("new", {"ports": [{"port": number} for number in range(1, 600)]})
    everywhere = network_policy("new", {"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]})
    (finding,) = brought(SHOP, large, everywhere).findings
    assert finding.code == "TW215"
    assert "opens pods" in finding.message


def test_very_many_policies_of_one_priority_are_compared() -> None:
    """A policy finds those that it contradicts among hundreds of its priority."""
    others = [admin(f"a{number}", rule("Deny", 1000 + number), priority=7) for number in range(400)]
    mine = admin("mine", rule("Allow", 1003), priority=7)
    (finding,) = (each for each in brought([*SHOP, *others], None, mine).findings if each.code == "TW201")
    assert finding.related_objects == ("AdminNetworkPolicy/a3",)
