"""A comparison of two snapshots agrees with deciding each pair before and after."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds.network_clusters import OUTSIDE, PORTS, PROTOCOLS, clusters, network_policies
from tests.worlds.network_snapshots import resource, snapshot
from tierwall.analyze.future_pods import narrowed, with_future_pods
from tierwall.cli.main import root
from tierwall.core.verdict import Verdict
from tierwall.network.decide import decide
from tierwall.network.model.endpoints import Endpoint, address_endpoint
from tierwall.network.model.model import NetworkModel, network_model, provide_network_model
from tierwall.network.model.policies import KINDS as POLICY_KINDS
from tierwall.network.reach.changed_objects import changed_objects
from tierwall.network.reach.compare import (
    ChangedConnections,
    compare_connections,
    differences,
    joined_changes,
)
from tierwall.network.reach.spaces import bits
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import parse_address

Object = dict[str, Any]
Fate = dict[tuple[str, str, str, int], tuple[Verdict, tuple[str, ...]]]


def fates(model: NetworkModel, outside: list[Endpoint]) -> Fate:
    """Return every connection that is not denied, by the names of its endpoints."""
    out: Fate = {}
    endpoints = [*model.pods, *model.nodes, *outside]
    for source in endpoints:
        for destination in endpoints:
            if source is destination:
                continue
            for protocol in PROTOCOLS:
                for port in (*PORTS, 9):
                    decision = decide(model, source, destination, protocol, port)
                    domains = set(decision.domains)
                    if decision.verdict is not Verdict.DENY:
                        result = (
                            decision.verdict,
                            tuple(sorted(domains)) if decision.verdict is Verdict.CONDITIONAL else (),
                        )
                        out[str(source), str(destination), protocol, port] = result
    return out


def members(difference: ChangedConnections, mask: int, outside: list[Endpoint]) -> Iterator[str]:
    for member in difference.side.classes.members(mask):
        if member.spans:
            for endpoint in outside:
                if any(low <= endpoint.addresses[0] <= high for low, high in member.spans):
                    yield str(endpoint)
        else:
            yield from map(str, member.members)


@settings(max_examples=examples(150))
@given(clusters(most_policies=4), clusters(most_policies=4))
def test_a_comparison_lists_exactly_the_connections_that_differ(before: list[Object], after: list[Object]) -> None:
    compare(before, after)


@settings(max_examples=examples(150))
@given(clusters(most_policies=4), clusters(most_policies=3), st.data())
def test_a_comparison_of_other_policies_lists_exactly_the_connections_that_differ(
    before: list[Object], others: list[Object], data: st.DataObject
) -> None:
    kept = [value for value in before if not value["kind"].endswith("Policy") or data.draw(st.booleans())]
    added = [value for value in others if value["kind"].endswith("Policy")]
    names = {(value["kind"], value["metadata"]["name"]) for value in added}
    after = [value for value in kept if (value["kind"], value["metadata"]["name"]) not in names]
    assert all(kind in POLICY_KINDS for kind, _ in changed_objects(snapshot(before), snapshot([*after, *added])))
    compare(before, [*after, *added])


@settings(max_examples=examples(60))
@given(clusters(most_policies=4), st.lists(network_policies("q1"), max_size=2), st.data())
def test_a_model_with_other_policies_may_be_derived_from_the_one_before(
    objects: list[Object], others: list[Object], data: st.DataObject
) -> None:
    before = snapshot(objects)
    given_policies = [each for each in before if each.kind == "NetworkPolicy"]
    dropped = [each for each in given_policies if data.draw(st.booleans())]
    after = before.with_changes(put=map(resource, others), drop=dropped)
    provide_network_model(before, after)
    assert fates(network_model(after), []) == fates(NetworkModel(after), [])
    # A comparison that shares endpoints finds what one does that shares nothing, whatever was compared before it.
    without = before.with_changes(drop=given_policies)
    provide_network_model(before, without)
    for edited in (after, without, after):
        differing = list(map(str, compare_connections(before, edited)))
        assert differing == list(map(str, compare_connections(Snapshot.of(tuple(before)), Snapshot.of(tuple(edited)))))
    # What shows no change for future pods near the changed policies shows none anywhere.
    near = narrowed(before, after, changed_objects(before, after))
    if near is not None and not list(with_future_pods(*near).changes()):
        assert list(with_future_pods(before, after).changes()) == []


@settings(max_examples=examples(60))
@given(clusters(most_policies=3), clusters(most_policies=3), st.data())
def test_a_model_with_other_objects_may_be_derived_from_the_one_before(
    objects: list[Object], others: list[Object], data: st.DataObject
) -> None:
    before = snapshot(objects)
    dropped = [each for each in before if data.draw(st.booleans())]
    put = [each for each in snapshot(others) if data.draw(st.booleans())]
    after = before.with_changes(put=put, drop=dropped)
    provide_network_model(before, after)
    assert fates(network_model(after), []) == fates(NetworkModel(after), [])
    apart = Snapshot.of(tuple(after))
    assert list(map(str, compare_connections(before, after))) == list(map(str, compare_connections(before, apart)))


def compare(before: list[Object], after: list[Object]) -> None:
    models = [NetworkModel(snapshot(objects)) for objects in (before, after)]
    inside = {address for model in models for endpoint in (*model.pods, *model.nodes) for address in endpoint.addresses}
    parsed = [address for text in OUTSIDE if (address := parse_address(text)) is not None]
    outside = [address_endpoint(address) for address in parsed if address not in inside]
    then, now = (fates(model, outside) for model in models)
    wanted = {
        (key, "added" if key not in then else "removed" if key not in now else "changed")
        for key in then.keys() | now.keys()
        if then.get(key) != now.get(key)
    }
    neither = {
        (str(source), str(destination))
        for model in models
        for source in (*model.pods, *model.nodes, *outside)
        for destination in (*model.pods, *model.nodes, *outside)
        if not source.under_policy and not destination.under_policy
    }
    # Pairs to which policies cannot apply on their side are left out, as in a list.
    wanted = {(key, change) for key, change in wanted if key[:2] not in neither}
    changes = {
        ((source, destination, protocol, port), difference.change)
        for difference in differences(snapshot(before), snapshot(after))
        for source in members(difference, difference.sources, outside)
        for destination in members(difference, difference.destinations, outside)
        if source != destination and (source, destination) not in neither
        for flow in difference.flows
        for protocol, first, last in flow.ranges
        for port in (*PORTS, 9)
        if first <= port <= last
    }
    assert changes == wanted


@settings(max_examples=examples(100))
@given(clusters(most_policies=6))
def test_a_snapshot_does_not_differ_from_itself(objects: list[Object]) -> None:
    assert list(compare_connections(snapshot(objects), snapshot(list(reversed(objects))))) == []


POD = "{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: shop, labels: {app: %s}}}\n---\n"
POLICY = """\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{podSelector: {matchLabels: {app: %s}}}], ports: [{port: 5432}]}]
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pods = POD % ("web", "web") + POD % ("db", "db")
    for name, text in (("old", pods + POLICY % "api"), ("new", pods + POLICY % "web"), ("more", pods * 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "all.yaml").write_text(text)
    return tmp_path


def test_an_added_connection_is_shown_with_its_deciders_now_and_before(folders: Path) -> None:
    result = CliRunner().invoke(root, ["diff", "old", "new"])
    assert result.exit_code == 4
    assert result.stdout.splitlines() == [
        "1 connection opens",
        "+ shop/web => shop/db : TCP 5432",
        "    TCP 5432: egress Default; ingress NetworkPolicy/shop/db ingress[0] "
        "(before, Deny: egress Default; ingress NetworkPolicy/shop/db spec)",
    ]


def test_a_removed_connection_is_shown_with_the_policy_that_denies_it_now(folders: Path) -> None:
    document = json.loads(CliRunner().invoke(root, ["diff", "new", "old", "-o", "json"]).stdout)
    (difference,) = document["differences"]
    assert difference["plane"] == "network"
    assert difference["change"] == "closes"
    assert difference["question"] == {"from": "shop/web", "to": "shop/db", "protocol": "TCP", "port": 5432}
    egress = {"policy": "Default"}
    assert difference["before"] == {
        "verdict": "Allow",
        "decidedBy": [egress, {"policy": "NetworkPolicy/shop/db", "rule": "ingress[0]"}],
    }
    assert difference["after"] == {
        "verdict": "Deny",
        "decidedBy": [egress, {"policy": "NetworkPolicy/shop/db", "rule": "spec"}],
    }
    assert difference["sentence"] == "shop/web can no longer reach shop/db on TCP 5432"
    assert document["notConsidered"] == []


def test_without_changes_the_exit_code_is_0_and_the_first_line_says_so(folders: Path) -> None:
    result = CliRunner().invoke(root, ["diff", "old", "old"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "nothing changes\n", "")


@pytest.mark.parametrize("output", ["csv", "md", "dot", "mermaid", "html"])
def test_every_format_names_both_endpoints(folders: Path, output: str) -> None:
    result = CliRunner().invoke(root, ["diff", "old", "new", "-o", output])
    assert result.exit_code == 4
    assert "shop/web" in result.stdout
    assert "shop/db" in result.stdout


def test_a_missing_folder_is_an_error(folders: Path) -> None:
    assert CliRunner().invoke(root, ["diff", "old", "nwe"]).exit_code == 1


def test_pictures_distinguish_added_from_removed_connections_of_the_same_endpoints(folders: Path) -> None:
    (folders / "moved").mkdir()
    text = (folders / "new" / "all.yaml").read_text()
    (folders / "moved" / "all.yaml").write_text(text.replace("5432", "5433"))
    drawn = CliRunner().invoke(root, ["diff", "new", "moved", "-o", "mermaid"]).stdout
    assert '|"+ TCP 5433"|' in drawn
    assert '|"- TCP 5432"|' in drawn
    page = CliRunner().invoke(root, ["diff", "new", "moved", "-o", "html"]).stdout
    assert re.findall(r"</span> (opens|closes|alters)</span>[^→]*→[^:]*: TCP (\d+)", page) == [
        ("opens", "5433"),
        ("closes", "5432"),
    ]


NARROWED = POLICY.replace("ports: [{port: 5432}]", "ports: [{port: 5432}, {port: 9090}]")


def test_fewer_ports_are_not_the_loss_of_a_connection(folders: Path) -> None:
    pods = POD % ("web", "web") + POD % ("db", "db")
    (folders / "wide.yaml").write_text(pods + NARROWED % "web")
    result = CliRunner().invoke(root, ["diff", "wide.yaml", "new"])
    assert result.stdout.splitlines()[1] == "- shop/web => shop/db : TCP 9090 (the rest still passes)"
    page = CliRunner().invoke(root, ["diff", "wide.yaml", "new", "-o", "html"]).stdout
    assert "shop/web → shop/db : TCP 9090 (the rest still passes)" in page
    page = CliRunner().invoke(root, ["diff", "wide.yaml", "old", "-o", "html"]).stdout
    assert "the rest still passes" not in page
    page = CliRunner().invoke(root, ["diff", "new", "wide.yaml", "-o", "html"]).stdout
    assert "shop/web → shop/db : TCP 9090 (beside what passed before)" in page


def test_changes_of_the_same_ports_are_one_entry_whatever_their_reasons(folders: Path) -> None:
    def world(name: str, allowed: str) -> None:
        pods = "".join(POD % (pod, pod) for pod in ("web", "db", "cache"))
        of_db = POLICY % allowed
        of_cache = of_db.replace("name: db", "name: cache").replace("app: db", "app: cache")
        (folders / name).write_text(f"{pods}{of_db}---\n{of_cache}")

    world("shut.yaml", "nobody")
    world("open.yaml", "web")
    lines = CliRunner().invoke(root, ["diff", "shut.yaml", "open.yaml"]).stdout.splitlines()
    assert lines[:2] == ["1 connection opens", "+ shop/web => shop/cache, shop/db : TCP 5432"]
    assert [line.partition(";")[2].split(" (")[0] for line in lines[2:]] == [
        " ingress NetworkPolicy/shop/cache ingress[0]",
        " ingress NetworkPolicy/shop/db ingress[0]",
    ]


@settings(max_examples=examples(100))
@given(clusters(most_policies=4), clusters(most_policies=4))
def test_joined_changes_are_the_changes_themselves(before: list[Object], after: list[Object]) -> None:
    def pairs(changes: Iterable[ChangedConnections]) -> set[tuple[int, int, str, str, str]]:
        return {
            (source, destination, changed.change, flow.ports, str(changed.side.classes.model is network_model(old)))
            for changed in changes
            for source in bits(changed.sources)
            for destination in bits(changed.destinations)
            for flow in changed.flows
        }

    old, new = snapshot(before), snapshot(after)
    changes = list(differences(old, new))
    assert pairs(joined_changes(changes)) == pairs(changes)


def test_of_very_many_reasons_the_first_are_shown_and_the_rest_is_counted(folders: Path) -> None:
    def world(name: str, allowed: str) -> None:
        apps = [f"db-{number}" for number in range(9)]
        of_db = POLICY % allowed
        policies = [of_db.replace("name: db", f"name: {app}").replace("app: db", f"app: {app}") for app in apps]
        pods = "".join(POD % (pod, pod) for pod in ("web", *apps))
        (folders / name).write_text(pods + "---\n".join(policies))

    world("shut.yaml", "nobody")
    world("open.yaml", "web")
    lines = CliRunner().invoke(root, ["diff", "shut.yaml", "open.yaml"]).stdout.splitlines()
    assert lines[0] == "1 connection opens"
    assert len(lines) == 9
    assert lines[-1] == "    and 3 more"
    listed = json.loads(CliRunner().invoke(root, ["diff", "shut.yaml", "open.yaml", "-o", "json"]).stdout)
    assert len(listed["differences"]) == 9
