"""Questions about redacted objects have the same answers as before, on every plane (docs/clusters.md#redact)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples, seeds
from tests.redact.renamed import outcome, rename_outcome, rename_question, snapshot_of
from tests.worlds import api_clusters, gateway_clusters, network_clusters, tool_worlds
from tierwall.redact.redaction import RedactedObjects, redact

Object = dict[str, Any]


def assert_same(plane: str, objects: list[Object], questions: list[Object]) -> RedactedObjects:
    """Ask about both, and compare."""
    before = snapshot_of(objects)
    redacted = redact(before)
    after = snapshot_of(list(redacted.values))
    for question in questions:
        expected = rename_outcome(redacted, outcome(plane, before, question))
        asked = rename_question(redacted, question)
        assert outcome(plane, after, asked) == expected, (question, asked)
    return redacted


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_connections(data: st.DataObject) -> None:
    objects = data.draw(network_clusters.clusters())
    ends = network_clusters.endpoints(objects)
    questions = [
        {
            "from": data.draw(st.sampled_from(ends)),
            "to": data.draw(st.sampled_from(ends)),
            "port": data.draw(st.sampled_from(network_clusters.PORTS)),
            "protocol": data.draw(st.sampled_from(network_clusters.PROTOCOLS)),
        }
        for _ in range(5)
    ]
    assert_same("network", objects, questions)


@pytest.mark.parametrize("seed", seeds(20))
def test_tool_calls(seed: int) -> None:
    world = tool_worlds.World(seed)
    assert_same("tool", world.objects, [world.question() for _ in range(8)])


@pytest.mark.parametrize("seed", seeds(8))
def test_settings(seed: int) -> None:
    rng = Random(seed)
    objects = gateway_clusters.cluster(rng)
    assert_same("gateway", objects, [gateway_clusters.question(rng) for _ in range(8)])


@pytest.mark.parametrize("seed", seeds(40))
def test_requests(seed: int) -> None:
    rng = Random(seed)
    inside = seed % 2 == 1
    redacted = assert_same("api", api_clusters.cluster(rng, inside), [api_clusters.question(rng) for _ in range(12)])
    if not inside:
        assert not redacted.kept
