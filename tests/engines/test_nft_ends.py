"""Packets for ends that stand for several endpoints, and pods that have ended: no address of theirs is in the table."""

from __future__ import annotations

from typing import Any

import pytest

from tests.labs.nft_kernel import nft_engine
from tests.worlds.nft_clusters import namespace, network_policy, pod
from tierwall.engines.nftables.table.compile import compile_model
from tierwall.engines.nftables.table.pods import FollowedTable, PodChange, pod_changes
from tierwall.engines.nftables.table.table import Table
from tierwall.network.model.model import NetworkModel
from tierwall.network.question import NetworkQuestion
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.nftables import Nftables
from tierwall.values.addresses import parse_address

__all__ = ["nft_engine"]

Object = dict[str, Any]
BASE = [
    namespace("shop"),
    pod("shop/web-0", "10.0.0.1", app="web"),
    network_policy("shop/db", podSelector={"matchLabels": {"app": "db"}}),
]


def with_phase(phase: str, resource: Object) -> Object:
    return {**resource, "status": {**resource["status"], "phase": phase}}


DB = pod("shop/db-0", "10.0.0.2", app="db")


def world(*objects: Object) -> Snapshot:
    return Snapshot.of(load_objects([*BASE, *objects]))


def addresses(table: Table) -> set[Any]:
    return {element for part in table.sets.values() for element in part.elements}


def test_a_pod_that_has_ended_is_not_in_the_table_and_its_address_is_free() -> None:
    address = parse_address("10.0.0.2")
    assert address in addresses(compile_model(NetworkModel(world(DB))).table)
    ended = with_phase("Succeeded", DB)
    assert address not in addresses(compile_model(NetworkModel(world(ended))).table)
    # Another pod with the address is judged as itself, not as both.
    other = pod("shop/new", "10.0.0.2", app="new")
    alone, both = (compile_model(NetworkModel(world(*objects))).table for objects in ([other], [ended, other]))
    assert alone.sets == both.sets


def test_a_followed_pod_leaves_the_table_when_it_ends() -> None:
    running, ended = world(with_phase("Running", DB)), world(with_phase("Failed", DB))
    (change,) = pod_changes(running, ended) or [PodChange(None, None)]
    assert (change.before is not None, change.after) == (True, None)
    (back,) = pod_changes(ended, running) or [PodChange(None, None)]
    assert (back.before, back.after is not None) == (None, True)
    assert pod_changes(ended, world(with_phase("Succeeded", DB))) == []
    table = FollowedTable(compile_model(NetworkModel(running)))
    step = table.step([PodChange(*change)])
    assert step is not None
    assert parse_address("10.0.0.2") not in addresses(step.table)


@pytest.mark.engine
def test_packets_are_sent_for_every_pair_that_policies_tell_apart(nft_engine: Nftables) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "all", "controller": True}
    pods = [pod("shop/open", "10.0.0.3", app="x"), pod("shop/shut", "10.0.0.4", app="db"), pod("shop/same", "10.0.0.5")]
    for member in pods:
        member["metadata"]["ownerReferences"] = [owner]
    template: Object = {"metadata": {}, "spec": {"containers": []}}
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "all", "namespace": "shop"},
        "spec": {"template": template},
    }
    snapshot = world(workload, *pods, with_phase("Failed", DB))
    questions = [
        NetworkQuestion(source="shop/web-0", to="Deployment/shop/all", port=80),
        NetworkQuestion(source="shop/web-0", to="shop/open", port=80),
        NetworkQuestion(source="outside", to="shop/open", port=80),
        NetworkQuestion(source="shop/web-0", to="shop/db-0", port=80),
    ]
    several, single, outside, ended = nft_engine.ask(snapshot, questions)
    assert several.answer is not None, several
    assert several.answer.verdict == "Conditional"
    assert {group.verdict: group.destinations for group in several.answer.detail.ends} == {
        "Allow": ("shop/open", "shop/same"),
        "Deny": ("shop/shut",),
    }
    assert len(several.answer.detail.packets) == len(several.answer.detail.decisions) > 1
    assert single.answer is not None
    assert single.answer.verdict == "Allow"
    assert "outside" in outside.skipped
    assert "has ended" in ended.skipped
