"""The compiler: the tables of some policies, and what a table never does."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds.nft_clusters import admin_policy, clusters, namespace, network_policy, pod, shadowed
from tierwall.cli.main import root
from tierwall.core.answer import Decider
from tierwall.core.reference import Reference
from tierwall.engines.nftables.table.compile import CompiledTable, compile_model
from tierwall.engines.nftables.table.names import Label
from tierwall.engines.nftables.table.options import LogScope, TableOptions
from tierwall.engines.nftables.table.sets import spans_of
from tierwall.engines.nftables.table.table import SetKind, table_script, transaction
from tierwall.network.model.model import network_model_with_shadow
from tierwall.network.model.rules import Direction, RuleAction
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import LAST_IPV4, Block, Span

PLAIN = ("forward", "input", "output", "egress", "ingress")


def compiled(objects: list[Any], options: TableOptions | None = None) -> CompiledTable:
    return compile_model(network_model_with_shadow(Snapshot.of(load_objects(objects))), options)


def shop(replicas: int = 1) -> list[Any]:
    return [
        namespace("shop", team="a"),
        *(pod(f"shop/web-{number}", f"10.0.{number >> 8}.{number & 255}", app="web") for number in range(replicas)),
        *(pod(f"shop/db-{number}", f"10.1.{number >> 8}.{number & 255}", app="db") for number in range(replicas)),
        network_policy(
            "shop/db",
            podSelector={"matchLabels": {"app": "db"}},
            ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": 5432}]}],
        ),
        admin_policy("guard", egress=[{"action": "Deny", "to": [{"networks": ["192.0.2.0/24"]}]}]),
    ]


@settings(max_examples=examples(60))
@given(clusters(), st.integers())
def test_the_order_of_objects_does_not_matter(objects: list[Any], seed: int) -> None:
    shuffled = objects.copy()
    random.Random(seed).shuffle(shuffled)
    assert table_script(compiled(objects).table) == table_script(compiled(shuffled).table)


@settings(max_examples=examples(60))
@given(clusters())
def test_nothing_is_rejected_and_every_policy_rule_is_counted_and_named(objects: list[Any]) -> None:
    table = compiled(objects).table
    for name, chain in table.chains.items():
        for rule in chain.rules:
            assert "reject" not in rule
            settles = re.search(r"\b(accept|drop|return|goto \w+)\b", rule)
            if name.startswith(("policy", "egress_", "ingress_", "below")) and " counter " in f" {rule}" and settles:
                assert re.search(r'comment "\w+/[^" ]+( \w+\[\d+\]( \(.*\))?|.* spec)"', rule), rule
                counter = re.search(r"counter name (\w+)", rule)
                assert counter is not None
                assert counter[1] in table.counters
    assert transaction(table, table) == ""


_WORDS = st.text(st.sampled_from("abz019-. "), min_size=1, max_size=20).map(str.strip).filter(bool)


@given(
    st.sampled_from(RuleAction),
    st.sampled_from(Direction),
    st.integers(0, 99),
    _WORDS.map(lambda name: name.replace(" ", "-")),
    st.none() | st.text(st.sampled_from("abz019-., ()[]:+"), min_size=1, max_size=30),
    st.booleans(),
)
def test_a_label_is_read_back_from_its_comment(
    action: RuleAction, direction: Direction, index: int, policy: str, name: str | None, shadow: bool
) -> None:
    decider = Decider(Reference("AdminNetworkPolicy", "", policy), f"{direction}[{index}]", name)
    label = Label(action, direction, (decider,), shadow)
    assert Label.parse(label.shortened()) == label
    isolating = tuple(Decider(Reference("NetworkPolicy", "shop", f"{policy}{number}"), "spec") for number in range(2))
    label = Label(RuleAction.DENY, direction, isolating, shadow)
    assert Label.parse(label.shortened()) == label


@given(st.text(max_size=300), st.text(max_size=120), st.integers(60, 127))
def test_a_comment_stays_short_and_readable_whatever_names_are_chosen(policy: str, name: str, most: int) -> None:
    decider = Decider(Reference("AdminNetworkPolicy", "", policy), "egress[0]", name)
    label = Label(RuleAction.DENY, Direction.EGRESS, (decider,))
    text = label.shortened(most)
    assert len(text.encode()) <= most
    parsed = Label.parse(text)
    assert parsed is not None
    assert (parsed.action, parsed.decided_by[0].rule) == (RuleAction.DENY, "egress[0]")
    (owned,) = parsed.owned_by(label.owners()).decided_by
    assert len(owned.name or "") == len(name)


@pytest.mark.parametrize("text", ["", "drop", "Deny", "Deny egress[0]", "Reject egress[0] a/b", "Deny sideways[0] a/b"])
def test_a_comment_by_someone_else_is_ignored(text: str) -> None:
    assert Label.parse(text) is None


def test_more_pods_of_a_class_only_add_elements() -> None:
    few, many = compiled(shop(1)).table, compiled(shop(500)).table
    assert few.chains == many.chains
    assert few.counters == many.counters
    assert set(few.sets) == set(many.sets)
    assert sum(len(part.elements) for part in many.sets.values()) > 500


def test_sets_keep_their_names_from_version_to_version() -> None:
    labels = {"matchLabels": {"app": "db"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]}
    block = {"cidr": "192.0.2.0/24", "except": ["192.0.2.7/32"]}
    peers = [{"podSelector": labels}, {"namespaceSelector": {"matchLabels": {"team": "a"}}}, {"ipBlock": block}]
    ports = [{"portNumber": {"protocol": "TCP", "port": 1}}, {"portRange": {"protocol": "TCP", "start": 5, "end": 9}}]
    nodes = [{"nodes": {"matchLabels": {"pool": "x"}}}, {"namespaces": {"matchLabels": {}}}]
    objects = [
        namespace("shop", team="a"),
        pod("shop/web", "10.0.0.1", app="web"),
        network_policy("shop/p", podSelector={}, ingress=[{"from": peers, "ports": [{"port": "web"}]}]),
        admin_policy("guard", egress=[{"action": "Deny", "name": "n", "to": nodes, "ports": ports}]),
    ]
    assert sorted(name for name in compiled(objects).table.sets if "_" in name) == [
        "blocks4_ccaa40c0fe68",
        "egress4_144a0efd828a",
        "egress6_144a0efd828a",
        "ends4_72918d18d0ec",
        "ends4_cfeb26529c21",
        "ingress4_0a36ec2a8b19",
        "ingress6_0a36ec2a8b19",
        "port4_95033fddd6dc",
        "ports_57ef87f32861",
    ]


def test_rules_that_mean_the_same_share_sets_and_chains() -> None:
    rule = {"from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}], "ports": [{"port": 80}, {"port": 443}]}
    objects = shop() + [network_policy(f"shop/p{number}", podSelector={}, ingress=[rule]) for number in range(50)]
    table = compiled(objects).table
    assert sum(name.startswith("ends4") for name in table.sets) == 2
    assert sum(name.startswith("ports") for name in table.sets) == 1


def test_a_table_for_one_node_judges_only_its_pods() -> None:
    objects = shop(2)
    for resource in objects:
        if resource["kind"] == "Pod":
            resource["spec"]["nodeName"] = "n1" if resource["metadata"]["name"] == "web-0" else "n2"
    table = compiled(objects, TableOptions(node="n1")).table
    judged = {
        element
        for name, part in table.sets.items()
        if part.kind is SetKind.VERDICTS and name.startswith("egress4")
        for element in part.elements
    }
    assert judged == {0x0A000000, "*"}


def test_a_node_may_be_exempt_from_the_policies_of_its_pods() -> None:
    assert set(compiled(shop()).table.chains) >= set(PLAIN)
    exempt = compiled(shop(), TableOptions(exempt_own_node=True)).table.chains
    assert "forward" in exempt
    assert not {"input", "output"} & exempt.keys()
    only_probes = compiled(shop(), TableOptions(exempt_probes=True)).table.chains
    assert {"forward", "input"} <= only_probes.keys()
    assert "output" not in only_probes


@given(st.text(max_size=300))
def test_names_of_objects_never_leave_their_comments(name: str) -> None:
    objects = shop()
    objects[3]["metadata"]["name"] = name or "x"
    objects[1]["metadata"]["name"] = name or "x"
    for line in table_script(compiled(objects).table).splitlines():
        quoted = re.findall(r'"([^"]*)"', line)
        assert line.count('"') == 2 * len(quoted)
        for comment in quoted:
            assert re.fullmatch(r"[A-Za-z0-9 /._:;,()\[\]#=!*+?-]{0,127}", comment)


def test_domain_names_fail_closed_and_are_reported() -> None:
    def with_rule(action: str) -> CompiledTable:
        egress = [
            {"action": action, "to": [{"domainNames": ["example.org"]}], "ports": [{"portNumber": {"port": 443}}]},
            {"action": "Allow", "to": [{"namespaces": {}}]},
        ]
        below = network_policy("shop/closed", podSelector={}, policyTypes=["Egress"])
        return compiled([*shop()[:3], below, admin_policy("names", egress=egress)], TableOptions(log=LogScope.NONE))

    def lines(compiled: CompiledTable) -> list[str]:
        chains = compiled.table.chains.items()
        return [rule for name, chain in chains if name not in PLAIN for rule in chain.rules if "egress[0]" in rule]

    for action in ("Allow", "Deny", "Pass"):
        assert [diagnostic.code for diagnostic in with_rule(action).diagnostics] == ["TW605"]
    assert lines(with_rule("Allow")) == []
    (deny,) = lines(with_rule("Deny"))
    assert deny.startswith("tcp dport 443 counter")
    assert " drop " in deny
    # After a Pass, only connections pass that both the rest of the tier and the tiers below allow.
    (passes,) = lines(with_rule("Pass"))
    assert re.match(r"tcp dport 443 goto both_\w+ ", passes)
    (both,) = (chain for name, chain in with_rule("Pass").table.chains.items() if name.startswith("both"))
    assert not any("return" in rule for rule in both.rules)


def test_a_watched_policy_gives_no_verdict() -> None:
    deny = admin_policy("strict", egress=[{"action": "Deny", "to": [{"namespaces": {}}]}])
    isolate = network_policy("shop/isolate", podSelector={}, policyTypes=["Ingress", "Egress"])
    table = compiled([*shop()[:3], shadowed(deny), shadowed(isolate)]).table
    for name, chain in table.chains.items():
        if name not in PLAIN:
            assert not any(re.search(r"\bdrop\b", rule) for rule in chain.rules), name
    assert sorted(table.counters.values()) == [
        "ShadowDeny egress:spec NetworkPolicy/shop/isolate",
        "ShadowDeny egress[0] AdminNetworkPolicy/strict",
        "ShadowDeny ingress:spec NetworkPolicy/shop/isolate",
    ]


def test_the_command_prints_the_lines_of_a_watched_policy(tmp_path: Path) -> None:
    deny = admin_policy("strict", egress=[{"action": "Deny", "to": [{"namespaces": {}}]}])
    (tmp_path / "all.json").write_text(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [*shop(), shadowed(deny)]})
    )
    result = CliRunner().invoke(root, ["compile", "nft", "-f", str(tmp_path)])
    assert result.exit_code == 0
    assert "ShadowDeny egress[0] AdminNetworkPolicy/strict" in result.stdout


@given(st.lists(st.tuples(st.integers(LAST_IPV4 - 20, LAST_IPV4 + 20), st.integers(0, 8)), max_size=6), st.data())
def test_blocks_become_spans_that_hold_the_same_addresses(starts: list[tuple[int, int]], data: st.DataObject) -> None:
    blocks = []
    for low, length in starts:
        high = low + length if low > LAST_IPV4 else min(low + length, LAST_IPV4)
        hole = data.draw(st.integers(low, high))
        blocks.append(Block(Span(low, high), data.draw(st.sampled_from(((), (Span(hole, hole),))))))
    some = data.draw(st.sets(st.integers(LAST_IPV4 - 20, LAST_IPV4 + 20), max_size=3))
    spans = spans_of(blocks, some)
    for address in range(LAST_IPV4 - 25, LAST_IPV4 + 35):
        inside = any(low <= address <= high for low, high in spans)
        assert inside is (any(block.contains(address) for block in blocks) and address not in some)
    for span, following in itertools.pairwise(spans):
        assert span.high < following.low
    assert not any(low <= LAST_IPV4 < high for low, high in spans)
