"""A change of an AccessPolicy or AgentgatewayPolicy brings what the whole analysis finds with it and not without it."""

from __future__ import annotations

from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds import gateway_clusters, tool_worlds
from tests.worlds.network_snapshots import resource
from tierwall.analyze import attached_change
from tierwall.analyze.attached_change import KINDS
from tierwall.analyze.change_findings import WORST_FIRST, ChangeIndex, Fact, PolicyChange, facts
from tierwall.analyze.checks import check
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

Object = dict[str, Any]


def gateway_world(seed: int) -> list[Object]:
    """A random cluster with AgentgatewayPolicies."""
    return gateway_clusters.cluster(Random(seed), 12)


def tool_world(seed: int) -> list[Object]:
    """A random cluster with AccessPolicies, and routes from its Gateways to its backends."""
    rng, objects = Random(seed), tool_worlds.World(seed).objects
    gateways = [value for value in objects if value["kind"] == "Gateway"]
    routes = []
    for number, backend in enumerate(value for value in objects if value["kind"] == "XBackend"):
        parent, metadata = rng.choice(gateways)["metadata"], backend["metadata"]
        ref = {"group": backend["apiVersion"].partition("/")[0], "kind": "XBackend", "name": metadata["name"]}
        if parent["namespace"] == metadata["namespace"]:
            spec = {"parentRefs": [{"name": parent["name"]}], "rules": [{"backendRefs": [{**ref, "port": 80}]}]}
            route = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "spec": spec}
            routes.append({**route, "metadata": {"name": f"r{number}", "namespace": metadata["namespace"]}})
    return [*objects, *routes]


def policies_of(objects: list[Object]) -> list[Object]:
    """Return the policies that are judged."""
    return [value for value in objects if (value["apiVersion"].rpartition("/")[0], value["kind"]) in KINDS]


def whole(snapshot: Snapshot, policy: Resource) -> set[Fact]:
    """Return what the whole analysis says about a policy."""
    about = str(policy.reference)
    findings = [finding for finding in check(snapshot) if finding.code in WORST_FIRST]
    return {fact for finding in findings if finding.reference == policy.reference for fact in facts(finding, about)}


@pytest.mark.parametrize("world", [gateway_world, tool_world])
@settings(max_examples=examples(25))
@given(seed=st.integers(0, 1 << 32), is_new=st.booleans())
def test_a_change_brings_what_the_whole_analysis_finds_with_it_only(world: Any, seed: int, is_new: bool) -> None:
    objects = world(seed)
    candidates = policies_of(objects)
    if len(candidates) < 2:
        return
    rng = Random(seed)
    before, other = rng.sample(candidates, 2)
    # It becomes another policy of the same kind; where the kinds differ, it is new or the same.
    after = {**before, "spec": other["spec"]} if before["kind"] == other["kind"] else before
    after = {**after, "apiVersion": other["apiVersion"] if before["kind"] == other["kind"] else before["apiVersion"]}
    if after["apiVersion"].rpartition("/")[0] != before["apiVersion"].rpartition("/")[0]:
        after = before
    rest = [resource(value) for value in objects if value is not before]
    old, new = None if is_new else resource(before), resource(after)
    without = Snapshot.of([*rest, *([old] if old else [])])
    index = ChangeIndex()
    index.update(without)
    result = index.findings(PolicyChange(old, new), inf)
    about = str(new.reference)
    known = whole(without, old) if old is not None else set()
    brought = {fact for finding in result.findings for fact in facts(finding, about)}
    assert brought - known == whole(without.with_changes(put=[new]), new) - known


@settings(max_examples=examples(10))
@given(seed=st.integers(0, 1 << 32))
def test_an_index_that_follows_a_cluster_is_like_a_new_one(seed: int) -> None:
    followed, fresh = ChangeIndex(), ChangeIndex()
    last = Snapshot.of(map(resource, gateway_world(seed)))
    followed.update(Snapshot.of(map(resource, gateway_world(seed + 1))))
    followed.update(last)
    fresh.update(last)
    for value in policies_of(gateway_world(seed)):
        change = PolicyChange(None, resource(value))
        said = [{str(finding) for finding in index.findings(change, inf).findings} for index in (followed, fresh)]
        assert said[0] == said[1]


def test_a_policy_among_too_many_is_judged_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached_change, "MAX_OBJECTS", 0)
    objects = gateway_world(1)
    index = ChangeIndex()
    index.update(Snapshot.of(map(resource, objects)))
    alone = 0
    for value in policies_of(objects):
        codes = {finding.code for finding in index.findings(PolicyChange(None, resource(value)), inf).findings}
        # A policy that attaches to nothing has no others beside it.
        alone += "TW215" in codes
        assert not codes & {"TW303", "TW304", "TW305", "TW306"}
    assert alone
