"""Findings about random clusters are true of what is decided there, and the walk sees every rule of every cell."""

from __future__ import annotations

from random import Random
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import tierwall
from tests.randomness import examples
from tests.worlds.network_clusters import PORTS, clusters, namespace_selectors
from tests.worlds.network_objects import network_policy
from tests.worlds.network_snapshots import snapshot
from tierwall.analyze.network_cells import cells_with_rules
from tierwall.network.model.model import network_model
from tierwall.network.model.rules import Direction
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.membership import port_cells
from tierwall.network.reach.rows import Rows

Object = dict[str, Any]
VERSION = "policy.networking.k8s.io/v1alpha1"


@st.composite
def opened_clusters(draw: st.DrawFn) -> list[Object]:
    """Random clusters with deny-all NetworkPolicies, which an Allow opens wholly or in part."""
    objects = draw(clusters(most_policies=2))
    for name in {resource["metadata"]["namespace"] for resource in objects if resource["kind"] == "Pod"}:
        objects.append(network_policy("closed", namespace=name))
    allow: Object = {"action": "Allow", "from": [{"namespaces": draw(st.just({}) | namespace_selectors)}]}
    if draw(st.booleans()):
        allow["ports"] = [{"portNumber": {"port": 80}}]
    spec = {"priority": draw(st.integers(0, 4)), "subject": {"namespaces": {}}, "ingress": [allow]}
    return [*objects, {"apiVersion": VERSION, "kind": "AdminNetworkPolicy", "metadata": {"name": "open"}, "spec": spec}]


@settings(max_examples=examples(60))
@given(opened_clusters())
def test_a_policy_that_is_called_opened_drops_nothing_between_pods(objects: list[Object]) -> None:
    world = tierwall.load(objects=objects)
    opened = {
        (str(finding.reference), finding.places[0]) for finding in world.check(select=["TW212"]) if finding.reference
    }
    if not opened:
        return
    pods = [
        f"{resource.namespace}/{resource.name}"
        for resource in world.objects("Pod")
        if not resource.spec.get("hostNetwork")
    ]
    for source in pods:
        for destination in pods:
            if source == destination:
                continue
            for port in PORTS:
                answer = world.ask(tierwall.NetworkQuestion(source=source, to=destination, port=port))
                for direction in Direction:
                    decision = getattr(answer.detail, direction)
                    deciders = {(str(decider.policy), str(direction)) for decider in decision.decided_by}
                    if str(decision.verdict) == "Deny":
                        assert deciders.isdisjoint(opened), (source, destination, port, direction)


@settings(max_examples=examples(40))
@given(opened_clusters(), st.randoms(use_true_random=False), st.booleans())
def test_a_baseline_accepts_the_same_findings_wherever_they_are_written(
    objects: list[Object], random: Random, flow: bool
) -> None:
    def written(objects: list[Object], flow: bool) -> str:
        return "---\n".join(yaml.safe_dump(resource, default_flow_style=flow) for resource in objects)

    before = tierwall.loads(written(objects, flow), "before.yaml")
    moved = list(objects)
    random.shuffle(moved)
    after = tierwall.loads(f"# moved\n\n{written(moved, not flow)}", "after.yaml")
    assert after.check(baseline=before.baseline()) == []
    assert after.check(against=before) == []
    assert len(after.review(against=before).known) == len(before.check())


@settings(max_examples=examples(40))
@given(opened_clusters(), st.booleans())
def test_a_comment_at_the_line_that_a_finding_names_accepts_it(objects: list[Object], above: bool) -> None:
    text = "---\n".join(yaml.safe_dump(resource, width=1000) for resource in objects)
    lines = text.splitlines()
    for finding in sorted(tierwall.loads(text).check(), key=lambda finding: finding.at or (), reverse=True):
        if finding.at is None:
            continue
        number = finding.at.line - 1
        comment = f"# tierwall: ignore {finding.code} tried"
        # A line has room for one comment; the others go above it.
        if above or "#" in lines[number]:
            lines.insert(number, comment)
        else:
            lines[number] += f" {comment}"
    reviewed = tierwall.loads("\n".join(lines)).review()
    assert [finding for finding in reviewed.findings if finding.at is not None and finding.code != "TW033"] == []
    # Two comments for one code on one line: the second has nothing left to accept.
    assert {entry.reason for entry in reviewed.accepted} <= {"tried"}


@settings(max_examples=examples(150))
@given(clusters())
def test_cells_are_those_of_the_list_and_have_the_rules_that_match_there(objects: list[Object]) -> None:
    model = network_model(snapshot(objects))
    rows = Rows(EndpointClasses(model), True)
    for pod in model.pods:
        if not pod.under_policy:
            continue
        for direction in Direction:
            stack = model.stack(pod, direction)
            matched = {tier.name: rows.membership.matched(tier, pod, direction) for tier in stack}
            rules = [rule for policies in matched.values() for listed in policies.values() for rule in listed]
            cells = dict(cells_with_rules(rows.ports.everything, matched))
            assert set(cells) == set(port_cells(rows.ports.everything, rules))
            for cell, tiers in cells.items():
                for name, policies in matched.items():
                    for policy, listed in policies.items():
                        here = tiers[name].get(policy, [])
                        assert [rule for rule in listed if any(rule.on(cell))] == [
                            rule for rule in here if any(rule.on(cell))
                        ]
